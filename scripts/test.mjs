// `npm test` after the bootstrap: the C++ tests through ctest, then Jest, then the package as its users install it.
// Arguments go to Jest, and then only Jest runs.
import { spawn, spawnSync } from 'node:child_process';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { listTestFiles, TestRun } from './jest_files.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const jestArgs = process.argv.slice(2);

/** Runs ctest with a line per program; each program says itself how many of its cases passed. */
async function runCppTests() {
  console.log('\nC++ tests');
  const args = ['--test-dir', path.join(root, 'build-cmake'), '--verbose', '--timeout', '600'];
  const child = spawn('ctest', args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let output = '';
  child.stdout.setEncoding('utf8');
  child.stdout.on('data', (text) => {
    output += text;
  });
  const code = await new Promise((resolve) => {
    child.once('error', () => resolve(127));
    child.once('close', resolve);
  });
  const lines = output.split('\n');
  const shown = code === 0 ? lines.filter((line) => /^\s*\d+\/\d+ Test +#/.test(line)) : lines;
  console.log(shown.join('\n'));
  const counts = [...output.matchAll(/^\d+: (\d+) passed, (\d+) failed/gm)];
  const sum = (index) => counts.reduce((total, match) => total + Number(match[index]), 0);
  // A program that crashes counts nothing itself.
  const broken = /(\d+) tests failed out of/.exec(output)?.[1] ?? '0';
  const failed = Math.max(sum(2), Number(broken));
  return { ok: code === 0 && counts.length > 0, line: `C++: ${sum(1)} passed, ${failed} failed` };
}

/** Jest with arguments of its own. */
function runJest(args) {
  const jest = path.join(root, 'node_modules', 'jest', 'bin', 'jest.js');
  const run = spawnSync(process.execPath, [jest, ...args], { stdio: 'inherit', cwd: root });
  return { ok: run.status === 0, line: `Jest: ${run.status === 0 ? 'passed' : 'FAILED'}` };
}

/** Folders of tests that need one core, and little of it: they come first, beside the C++ tests. */
const FIRST = ['unit', 'binding', 'conformance'];

/** The C++ tests and all of Jest's: these in one lane while the C++ tests run, and in two after them. */
async function runTests() {
  const isFirst = (file) =>
    FIRST.some((folder) => file.startsWith(path.join(root, 'test', folder) + path.sep));
  const files = listTestFiles(root);
  const jest = new TestRun(root, [...files.filter(isFirst), ...files.filter((file) => !isFirst(file))]);
  const [cpp] = await Promise.all([
    runCppTests().then(async (result) => {
      await jest.lane();
      return result;
    }),
    jest.lane(),
  ]);
  const { passed, failed, skipped } = jest.sums;
  return [cpp, { ok: failed === 0, line: `Jest: ${passed} passed, ${failed} failed, ${skipped} skipped` }];
}

/** Prints what scripts/smoke_test.mjs does; its last line is the outcome (passed, skipped and why, FAILED). */
function runPackageTest() {
  console.log('\nPackage');
  const script = path.join(root, 'scripts', 'smoke_test.mjs');
  const run = spawnSync(process.execPath, [script], { encoding: 'utf8', cwd: root, timeout: 900_000 });
  process.stdout.write(`${run.stdout}${run.stderr}`);
  const line = /^Package: .*$/m.exec(`${run.stdout}${run.stderr}`)?.[0] ?? 'Package: no outcome';
  return { ok: run.status === 0, line };
}

const results = jestArgs.length > 0 ? [runJest(jestArgs)] : [...(await runTests()), runPackageTest()];
console.log(`\n${results.map((result) => result.line).join('\n')}`);
process.exit(results.every((result) => result.ok) ? 0 : 1);
