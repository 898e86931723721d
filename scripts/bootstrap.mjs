// Does whatever set-up is missing in a clone and skips what is there: npm packages, the TypeScript build,
// LibTorch, the native addon. Uses nothing but Node's own modules at first.
//   --tests            also the C++ tests
//   --no-native        neither LibTorch nor the addon, for scripts that see to them themselves
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';

const require = createRequire(import.meta.url);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const started = Date.now();
const { values: asked } = commandLine({
  options: { tests: { type: 'boolean' }, 'no-native': { type: 'boolean' } },
});
const native = !asked['no-native'];
const inRoot = (...parts) => path.join(root, ...parts);

function say(line) {
  const seconds = Math.round((Date.now() - started) / 1000);
  const elapsed = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`;
  console.log(`[setup ${elapsed}] ${line}`);
}

/** Ends the program with one message. */
function stop(message) {
  console.error(`\ntroupe: ${message}`);
  process.exit(1);
}

function run(what, program, args) {
  const result = spawnSync(program, args, { stdio: 'inherit', cwd: root });
  if (result.error) stop(`${what} could not start ${program}: ${result.error.message}`);
  if (result.signal) stop(`${what} was ended by ${result.signal}.`);
  if (result.status !== 0) stop(`${what} failed with exit code ${result.status}; its messages are above.`);
}

/** Everything that is missing in one message. What is built already needs no tools to run. */
function checkTools() {
  const compiles = native && !existsSync(inRoot('build', 'Release', 'troupe.node'));
  const { checkPrerequisites } = require('./prerequisites.js');
  const needed = (tool) => !tool.ok && !(tool.name === 'python' && seemsToHaveLibTorch());
  const missing = checkPrerequisites(compiles ? undefined : ['node']).filter(needed);
  if (missing.length === 0) return;
  const lines = missing.map((tool) => `  ${tool.found}\n    ${tool.fix}`);
  stop(`this machine lacks what Troupe is built with.\n${lines.join('\n')}`);
}

/** Then Python and pip have nothing to fetch. Whether it is one that fits is seen by what looks into it later. */
function seemsToHaveLibTorch() {
  if (process.env.TROUPE_LIBTORCH || existsSync(inRoot('.troupe', 'libtorch'))) return true;
  const program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)";
  // Not from the current directory: a folder named torch there would be taken for the package.
  const { status } = spawnSync(process.env.TROUPE_PYTHON || 'python3', ['-c', program], {
    cwd: path.parse(root).root,
    stdio: 'ignore',
  });
  return status === 0;
}

function installPackages() {
  const lock = createHash('sha256')
    .update(readFileSync(inRoot('package-lock.json')))
    .digest('hex');
  const stamp = inRoot('node_modules', '.troupe-lock');
  const installed = inRoot('node_modules', '.package-lock.json');
  if (
    existsSync(stamp)
      ? readFileSync(stamp, 'utf8') === lock
      : existsSync(installed) && sameVersions(installed)
  )
    return;
  say('Installing npm packages (npm ci) ...');
  run('npm ci', 'npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund']);
  writeFileSync(stamp, lock);
}

/** For packages that someone installed by hand: does npm's own record of node_modules agree with the lock file? */
function sameVersions(installed) {
  const versions = (file) => JSON.parse(readFileSync(file, 'utf8')).packages;
  const [have, want] = [versions(installed), versions(inRoot('package-lock.json'))];
  return Object.entries(want).every(
    ([name, entry]) => name === '' || entry.optional || have[name]?.version === entry.version,
  );
}

/** The compilers take a second or two, so there is nothing to gain from guessing whether they must run. */
function compileTypeScript() {
  say('Compiling TypeScript ...');
  run('The TypeScript build', process.execPath, [
    inRoot('node_modules/typescript/bin/tsc'),
    '-p',
    'tsconfig.build.json',
  ]);
  // npx keeps a link to this file by the checkout's path and sets its mode once: a link of an earlier build would not start this one.
  chmodSync(inRoot('dist', 'cli.js'), 0o755);
  run('The build of the page', process.execPath, [inRoot('node_modules/vite/bin/vite.js'), 'build', 'ui']);
}

async function prepareNative(tests) {
  const { buildForMachine, ensureLibTorch } = require('../dist/install/setup.js');
  const libtorch = await ensureLibTorch({}, say);
  const { built } = buildForMachine({ libtorch, tests, log: say });
  say(`${built ? 'Built' : 'Up to date:'} native addon for LibTorch ${libtorch.version} (${libtorch.dir})`);
}

checkTools();
installPackages();
compileTypeScript();
try {
  if (native) await prepareNative(asked.tests === true);
} catch (error) {
  stop(error.code ? error.message : error.stack);
}
