import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

// scripts/jest_files.mjs runs the test files of this project; here those of a project that it is given.

const script = resolve(__dirname, '../../scripts/jest_files.mjs');
let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'jest-files-'));
  writeFileSync(join(root, 'package.json'), '{}');
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function run(files: Record<string, string>, lanes = 1): { sums: unknown; stderr: string } {
  mkdirSync(join(root, 'tests'));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(root, 'tests', name), text);
  const program = `
    import { listTestFiles, TestRun } from ${JSON.stringify(script)};
    const [root, lanes] = process.argv.slice(1);
    const limits = { secondsPerFile: 6, secondsToExit: 2 };
    const jest = new TestRun(root, listTestFiles(root), limits);
    await Promise.all(Array.from({ length: Number(lanes) }, () => jest.lane()));
    console.log(JSON.stringify(jest.sums));`;
  const node = spawnSync(process.execPath, ['--input-type=module', '-e', program, root, String(lanes)], {
    encoding: 'utf8',
    timeout: 100_000,
  });
  const line = node.stdout.trim().split('\n').at(-1) ?? '';
  return { sums: line === '' ? node.stderr : JSON.parse(line), stderr: node.stderr };
}

test('a file that blocks its thread and one that ends the process count as failed, and the others run', () => {
  const { sums, stderr } = run({
    'a.test.js': "test('passes', () => {});",
    'b.test.js': "test('blocks', () => { for (;;); });",
    'c.test.js': "test('exits', () => process.kill(process.pid, 'SIGKILL'));",
    'd.test.js': "test('fails', () => expect(1).toBe(2)); test.skip('skipped', () => {});",
    'e.test.js': "test('passes', () => {}); test('again', () => {});",
  });
  expect([sums, stderr]).toEqual([{ passed: 3, failed: 3, skipped: 1 }, expect.any(String)]);
  expect(stderr).toMatch(
    /FAIL tests\/b\.test\.js: not done after 6 s, and ended; its processes:\n {2}\d+ of /,
  );
  expect(stderr).toMatch(/FAIL tests\/c\.test\.js: Jest ended while it ran: SIGKILL/);
});

test('what a file leaves open keeps nobody waiting', () => {
  const { sums, stderr } = run({
    'open.test.js': "test('leaves a timer', () => { setInterval(() => {}, 1000); });",
  });
  expect([sums, stderr]).toEqual([
    { passed: 1, failed: 0, skipped: 0 },
    expect.stringContaining('did not exit: one of them left something open'),
  ]);
});

test('two lanes share the files, and each is run once', () => {
  const file = "test('passes', () => require('node:fs').appendFileSync(__filename + '.runs', 'x'));";
  const names = Array.from({ length: 30 }, (_, i) => `${String(i).padStart(2, '0')}.test.js`);
  const { sums } = run(Object.fromEntries(names.map((name) => [name, file])), 2);
  expect(sums).toEqual({ passed: 30, failed: 0, skipped: 0 });
  for (const name of names) expect(readFileSync(join(root, 'tests', `${name}.runs`), 'utf8')).toBe('x');
});
