import { spawn, spawnSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

// scripts/gpu_check/runner.mjs on stages of shell commands: what is kept, repeated and left when something goes wrong.

const runner = pathToFileURL(path.resolve(__dirname, '../../../scripts/gpu_check/runner.mjs')).href;
let root: string;
let out: string;
beforeEach(() => {
  root = mkdtempSync(path.join(tmpdir(), 'troupe-gpu-check-'));
  out = path.join(root, 'out');
  mkdirSync(path.join(root, 'work'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

interface StageOf {
  name: string;
  /** Run by sh in the directory of the test. */
  script: string;
  limit?: number;
  least?: number;
  needs?: string[];
  product?: string;
}

/** A program that runs stages once, as scripts/gpu_check/main.mjs does. */
function program(
  stages: StageOf[],
  o: { seconds?: number; again?: string[]; resume?: string; pack?: string },
): string {
  const { seconds = 60, again = [], resume, pack = 'one' } = o;
  const given = stages.map(({ script, ...stage }) => ({
    limit: 20,
    ...stage,
    command: ['sh', '-c', script],
  }));
  return `
    import { Runner, State } from ${JSON.stringify(runner)};
    const state = new State('work', { pack: ${JSON.stringify(pack)}, device: 'cpu' });
    ${resume === undefined ? '' : `state.take(${JSON.stringify(resume)});`}
    const stages = ${JSON.stringify(given)};
    const runner = new Runner({ out: 'out', work: 'work', seconds: ${seconds}, state, stages, env: {}, title: 'a check' });
    process.exitCode = await runner.run(stages.map(({ name }) => name), ${JSON.stringify(again)});`;
}

function check(stages: StageOf[], o: Parameters<typeof program>[1] = {}) {
  const args = ['--input-type=module', '-e', program(stages, o)];
  const { status, stdout, stderr } = spawnSync(process.execPath, args, {
    cwd: root,
    encoding: 'utf8',
    timeout: 60_000,
  });
  return { status, said: stdout + stderr };
}

const file = (...names: string[]) => path.join(root, ...names);
const outcomes = () => {
  const { stages } = JSON.parse(readFileSync(path.join(out, 'state.json'), 'utf8')) as {
    stages: Record<string, { outcome: string; reason?: string }>;
  };
  return Object.fromEntries(Object.entries(stages).map(([name, { outcome }]) => [name, outcome]));
};
const runsOf = (name: string) => readFileSync(file(name), 'utf8').trim().split('\n').length;

test('a failed stage leaves those that need it, and only those; nothing is repeated but what is asked for', () => {
  const stages = [
    { name: 'good', script: 'echo run >>good; echo measured 7' },
    { name: 'bad', script: 'echo run >>bad; echo the reason >&2; exit 3' },
    { name: 'behind', script: 'echo run >>behind', needs: ['bad'] },
    { name: 'aside', script: 'echo run >>aside', needs: ['good'] },
  ];
  const first = check(stages);
  expect(first.said).toContain('bad: failed, it ended with exit code 3');
  expect(first.status).toBe(1);
  expect(outcomes()).toEqual({ good: 'ok', bad: 'failed', behind: 'not run', aside: 'ok' });
  const summary = readFileSync(path.join(out, 'summary.txt'), 'utf8');
  expect(summary).toMatch(/^behind +not run +\(it needs bad\)$/m);
  expect(summary).toContain('2 ok, 1 failed, 0 killed, 1 not run');
  const logs = spawnSync('tar', [
    '-xOzf',
    path.join(out, 'results.tar.gz'),
    'results/good.log',
    'results/bad.log',
  ]);
  expect(logs.stdout.toString().trim().split('\n').sort()).toEqual(['measured 7', 'the reason']);

  expect(check(stages).status).toBe(1);
  expect([runsOf('good'), runsOf('bad'), existsSync(file('behind'))]).toEqual([1, 1, false]);
  check(stages, { again: ['bad'] });
  expect([runsOf('good'), runsOf('bad')]).toEqual([1, 2]);
});

test('a check that is killed keeps what was done, and the next one goes on with what it was at', async () => {
  const stages = [
    { name: 'first', script: 'echo run >>first' },
    { name: 'second', script: 'echo run >>second; echo half way; test -e go || sleep 60' },
    { name: 'third', script: 'echo run >>third' },
  ];
  const child = spawn(process.execPath, ['--input-type=module', '-e', program(stages, {})], {
    cwd: root,
    stdio: 'ignore',
  });
  const exited = new Promise((done) => child.on('exit', done));
  const running = path.join(out, 'running.log');
  const read = () => (existsSync(running) ? readFileSync(running, 'utf8') : '');
  for (const end = Date.now() + 30_000; !read().includes('half way'); ) {
    if (Date.now() > end) throw new Error(`the second stage has not begun: ${read()}`);
    await new Promise((soon) => setTimeout(soon, 20));
  }
  child.kill('SIGKILL');
  await exited;
  expect(outcomes()).toEqual({ first: 'ok', second: 'running' });

  writeFileSync(file('go'), '');
  expect(check(stages).status).toBe(0);
  expect([runsOf('first'), runsOf('second'), runsOf('third')]).toEqual([1, 2, 1]);
  expect(existsSync(running)).toBe(false);
});

test('a stage that outlasts its limit ends with all its processes, and is tried twice in all', () => {
  const stages = [
    { name: 'slow', script: 'echo run >>slow; sleep 300 & echo $! >child; wait', limit: 1 },
    { name: 'next', script: 'true' },
  ];
  expect(check(stages).status).toBe(3);
  expect(outcomes()).toEqual({ slow: 'killed', next: 'ok' });
  const child = readFileSync(file('child'), 'utf8').trim();
  const state = existsSync(`/proc/${child}/stat`) ? readFileSync(`/proc/${child}/stat`, 'utf8') : '';
  expect(state === '' || / Z /.test(state)).toBe(true);
  check(stages);
  check(stages);
  expect(runsOf('slow')).toBe(2);
});

test('a stage that does not fit in what is left waits for the next call', () => {
  const stages = [{ name: 'long', script: 'true', limit: 100, least: 50 }];
  expect(check(stages, { seconds: 10 }).status).toBe(3);
  expect(readFileSync(path.join(out, 'summary.txt'), 'utf8')).toMatch(
    /not run .*\(\d+ s were left, and it wants 50\)/,
  );
  expect(check(stages).status).toBe(0);
});

test('results of another machine count, but not for what was made there, and not those of another pack', () => {
  const stages = [
    { name: 'build', script: 'echo run >>build; touch made', product: file('made') },
    { name: 'measure', script: 'echo run >>measure', needs: ['build'] },
  ];
  expect(check(stages).status).toBe(0);
  const state = file('state.json');
  writeFileSync(state, readFileSync(path.join(out, 'state.json')));
  rmSync(file('work'), { recursive: true });
  rmSync(file('made'));
  mkdirSync(file('work'));
  expect(check(stages, { resume: state }).status).toBe(0);
  expect([runsOf('build'), runsOf('measure')]).toEqual([2, 1]);

  rmSync(file('work'), { recursive: true });
  mkdirSync(file('work'));
  const refused = check(stages, { resume: state, pack: 'two' });
  expect(refused.status).toBe(1);
  expect(refused.said).toContain('expected results of pack two on cpu but these are of one on cpu');
});

test('every program of test/native with cases for a GPU is run', () => {
  const native = path.resolve(__dirname, '../../native');
  const withCases = readdirSync(native)
    .filter((name) => name.endsWith('_test.cc'))
    .filter((name) => readFileSync(path.join(native, name), 'utf8').includes('at::hasCUDA()'))
    .map((name) => name.replace(/\.cc$/, ''))
    .filter((name) => name !== 'cuda_comm_test'); // a stage of its own: it takes several GPUs
  const stages = pathToFileURL(path.resolve(__dirname, '../../../scripts/gpu_check/stages.mjs')).href;
  const source = `import { KERNEL_TESTS } from ${JSON.stringify(stages)}; console.log(JSON.stringify(KERNEL_TESTS));`;
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '-e', source], { encoding: 'utf8' });
  expect(withCases.length).toBeGreaterThan(5);
  expect(JSON.parse(stdout) as string[]).toEqual(expect.arrayContaining(withCases));
});
