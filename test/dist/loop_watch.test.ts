import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const DIST = resolve(__dirname, '../../dist');
const directory = mkdtempSync(join(tmpdir(), 'loop-watch-'));
const user = join(directory, 'agent.cjs');
// What is to be told goes on until it was: how soon that is depends on what else the machine does.
writeFileSync(
  user,
  `const { existsSync } = require('node:fs');
exports.forAWhile = (ms) => {
  for (const end = Date.now() + ms; Date.now() < end; );
};
exports.untilTold = (ms) => {
  for (const end = Date.now() + ms; Date.now() < end || !existsSync(process.env.TOLD); );
};
exports.solve = (ms) => {
  exports.untilTold(ms);
};
exports.match = () => /^(a+)+$/.test('a'.repeat(26) + 'b');
exports.microtasks = async () => {
  while (!existsSync(process.env.TOLD)) await 0;
};
exports.native = () => {
  const script = 'for i in $(seq 600); do [ -e "$TOLD" ] && exit; sleep 0.1; done';
  require('node:child_process').spawnSync('sh', ['-c', script]);
};
`,
);
let programs = 0;
/** What a program says whose loop is watched: of the user's code after half a second, of any after two. */
async function said(program: string, more: readonly string[] = []): Promise<string> {
  const script = `
    const { existsSync } = require('node:fs');
    const { forAWhile, untilTold, solve, match, microtasks, native } = require(${JSON.stringify(user)});
    require(${JSON.stringify(join(DIST, 'cli', 'loop_watch.js'))}).watchLoop({ tickMs: 50, userMs: 500, anyMs: 2000 });
    setTimeout(async () => { ${program}; process.stdout.write('went on'); }, 300);`;
  const TOLD = join(directory, `told-${programs++}`);
  const child = spawn(process.execPath, [...more, '-e', script], {
    env: { ...process.env, TOLD },
    timeout: 60_000,
  });
  const text = { stdout: '', stderr: '' };
  child.stdout.on('data', (some: Buffer) => {
    text.stdout += String(some);
  });
  child.stderr.on('data', (some: Buffer) => {
    text.stderr += String(some);
    writeFileSync(TOLD, '');
  });
  const status = await new Promise((done) => child.once('close', done));
  expect([text.stdout, status]).toEqual(['went on', 0]);
  return text.stderr;
}

const told = (name: string, line: number): RegExp =>
  new RegExp(
    `^troupe: for \\d+ s nothing else has happened in this process: ${name} at ${user}:${line} does not return.* All else waits for it`,
  );

test.each([
  ['a loop', 'untilTold(0)', 'exports.untilTold', 6],
  [
    'a regular expression that backtracks',
    'while (!existsSync(process.env.TOLD)) match()',
    'exports.match',
    11,
  ],
])('says where %s is', async (_, program, name, line) => {
  expect(await said(program)).toMatch(told(name, line));
});

test('says where microtasks that follow one another are, whether V8 stops within them or between them', async () => {
  const texts = await Promise.all(Array.from({ length: 8 }, () => said('await microtasks()')));
  for (const text of texts) expect(text).toMatch(told('exports.microtasks', 13));
});

test('says it once of each function, with who called it, and leaves the program as it was', async () => {
  const text = await said(
    'for (let i = 0; i < 2; i++) { solve(1200); await new Promise((done) => setTimeout(done, 300)); }',
  );
  expect(text.split('\n')).toHaveLength(2);
  expect(text).toContain(`, called at ${user}:9`);
});

test("says nothing of what turns, of a pause of this process, of what is not the user's, or beside a debugger", async () => {
  expect(
    await said(
      'for (let i = 0; i < 16; i++) { forAWhile(100); await new Promise((done) => setTimeout(done, 60)); }',
    ),
  ).toBe('');
  expect(
    await said(
      "require('node:child_process').spawn('sh', ['-c', 'sleep 1; kill -CONT $0', process.pid]); process.kill(process.pid, 'SIGSTOP')",
    ),
  ).toBe('');
  expect(await said('for (const end = Date.now() + 1200; Date.now() < end; );')).toBe('');
  expect(await said('forAWhile(1000)', ['--inspect=127.0.0.1:0'])).not.toContain('nothing else');
});

test('after long it says it of everything', async () => {
  expect(await said('native()')).toMatch(/: a function of Node or of a native library does not return\./);
  expect(await said('while (!existsSync(process.env.TOLD));')).toMatch(
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
