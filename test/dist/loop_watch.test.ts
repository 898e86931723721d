import { spawnSync } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const DIST = resolve(__dirname, '../../dist');
const directory = mkdtempSync(join(tmpdir(), 'loop-watch-'));
const user = join(directory, 'agent.cjs');
writeFileSync(
  user,
  `exports.forAWhile = (ms) => {
  for (const end = Date.now() + ms; Date.now() < end; );
};
exports.solve = (ms) => {
  exports.forAWhile(ms);
};
exports.match = () => /^(a+)+$/.test('a'.repeat(26) + 'b');
exports.microtasks = async (ms) => {
  for (const end = Date.now() + ms; Date.now() < end; ) await 0;
};
exports.native = (seconds) => require('node:child_process').spawnSync('sleep', [String(seconds)]);
`,
);
/** What a program says whose loop is watched: of the user's code after half a second, of any after two. */
function said(program: string, more: readonly string[] = []): string {
  const script = `
    const { forAWhile, solve, match, microtasks, native } = require(${JSON.stringify(user)});
    require(${JSON.stringify(join(DIST, 'cli', 'loop_watch.js'))}).watchLoop({ tickMs: 50, userMs: 500, anyMs: 2000 });
    setTimeout(async () => { ${program}; process.stdout.write('went on'); }, 300);`;
  const { stdout, stderr, status } = spawnSync(process.execPath, [...more, '-e', script], {
    encoding: 'utf8',
  });
  expect([stdout, status]).toEqual(['went on', 0]);
  return stderr;
}

const told = (name: string, line: number): RegExp =>
  new RegExp(
    `^troupe: for \\d+ s nothing else has happened in this process: ${name} at ${user}:${line} does not return.* All else waits for it`,
  );

test.each([
  ['a loop', 'solve(1500)', 'exports.forAWhile', 2],
  [
    'a regular expression that backtracks',
    'for (const end = Date.now() + 1500; Date.now() < end; ) match()',
    'exports.match',
    7,
  ],
  ['microtasks that follow one another', 'await microtasks(1500)', 'exports.microtasks', 9],
])('says where %s is', (_, program, name, line) => {
  expect(said(program)).toMatch(told(name, line));
});

test('says it once of each function, with who called it, and leaves the program as it was', () => {
  const text = said(
    'for (let i = 0; i < 2; i++) { solve(1200); await new Promise((done) => setTimeout(done, 300)); }',
  );
  expect(text.split('\n')).toHaveLength(2);
  expect(text).toContain(`, called at ${user}:5`);
});

test("says nothing of what turns, of a pause of this process, of what is not the user's, or beside a debugger", () => {
  expect(
    said(
      'for (let i = 0; i < 16; i++) { forAWhile(100); await new Promise((done) => setTimeout(done, 60)); }',
    ),
  ).toBe('');
  expect(
    said(
      "require('node:child_process').spawn('sh', ['-c', 'sleep 1; kill -CONT $0', process.pid]); process.kill(process.pid, 'SIGSTOP')",
    ),
  ).toBe('');
  expect(said('for (const end = Date.now() + 1200; Date.now() < end; );')).toBe('');
  expect(said('solve(1000)', ['--inspect=127.0.0.1:0'])).not.toContain('nothing else');
});

test('after long it says it of everything', () => {
  expect(said('native(3)')).toMatch(/: a function of Node or of a native library does not return\./);
  expect(said('for (const end = Date.now() + 3000; Date.now() < end; );')).toMatch(
    /for 2 s nothing else .*does not return/,
  );
});

test('a command that loads code of the user in its own process has a watch over its loop', () => {
  const threads = join(directory, 'threads.cjs');
  writeFileSync(threads, "throw new Error('threads: ' + process.report.getReport().workers.length);");
  const config = join(directory, 'run.yaml');
  writeFileSync(
    config,
    'data: { train_files: a.parquet }\nactor_rollout_ref: { model: { path: a/model } }\n',
  );
  const { stderr } = spawnSync(
    process.execPath,
    [join(DIST, 'cli.js'), 'validate', config, `actor_rollout_ref.model.external_lib=${threads}`],
    { encoding: 'utf8' },
  );
  expect(stderr).toContain('threads: 1,');
});
