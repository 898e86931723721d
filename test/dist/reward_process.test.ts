import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { settle } from '../../ts/reward/contract/outcome';
import { createRewardManager } from '../../ts/reward/manager';
import { RewardProcess } from '../../ts/reward/scorers/reward_process';

// A user's function in a process of its own, whatever it does there.

const directory = mkdtempSync(join(tmpdir(), 'reward-process-'));
const write = (name: string, text: string): string => {
  const path = join(directory, name);
  writeFileSync(path, text);
  return path;
};
const FUNCTION = write(
  'reward.cjs',
  `
let calls = 0;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const ways = {
  count: () => ++calls,
  pid: () => ({ score: 1, pid: process.pid }),
  kwargs: (_, kwargs) => kwargs.bonus,
  slow: async () => { await sleep(300); return 2; },
  never: () => new Promise(() => {}),
  loop: () => { for (;;); },
  loopLater: async () => { await sleep(20); for (;;); },
  exit: () => process.exit(0),
  exitLater: async () => { setTimeout(() => process.exit(0), 20); await sleep(100000); },
  kill: () => process.kill(process.pid, 'SIGKILL'),
  told: () => new Promise((done) => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGUSR2']) process.kill(process.pid, signal);
    setTimeout(done, 100, 3);
  }),
  throws: () => { throw new Error('boom \\x1b[2J' + 'x'.repeat(5e6)); },
  throwsLater: () => { setTimeout(() => { throw new Error('late boom'); }, 20); return 1; },
  floats: () => { Promise.reject(new Error('floating boom')); return sleep(1000).then(() => 1); },
  large: () => ({ score: 1, notes: 'x'.repeat(50e6) }),
};
exports.compute_score = (sample, kwargs) =>
  Array.isArray(sample) ? sample.map((one) => ways[one.response](one, kwargs)) : ways[sample.response](sample, kwargs);
`,
);

const made: RewardProcess[] = [];
afterEach(() => {
  for (const process of made.splice(0)) process.close();
});
const start = (timeoutMs = 20_000, path = FUNCTION): RewardProcess => {
  const module = { path, name: 'compute_score' };
  const process = new RewardProcess(
    { kind: 'function', module, libraries: [], kwargs: { bonus: 0.5 } },
    timeoutMs,
  );
  made.push(process);
  return process;
};
const call = (process: RewardProcess, response: string): Promise<unknown> => process.call({ response });

test('calls go to one process, which keeps its state, many at a time', async () => {
  const process = start();
  await process.start();
  expect(await Promise.all(['count', 'kwargs', 'count'].map((way) => call(process, way)))).toEqual([
    1, 0.5, 2,
  ]);
  const before = performance.now();
  expect(await Promise.all(Array.from({ length: 20 }, () => call(process, 'slow')))).toEqual(
    new Array(20).fill(2),
  );
  // One after another they would take 6 s.
  expect(performance.now() - before).toBeLessThan(6000);
  expect(await process.call([{ response: 'count' }, { response: 'count' }])).toEqual([3, 4]);
});

test('a loop is killed at its time-out, and the calls beside it are answered', async () => {
  const process = start(700);
  const ways = ['count', 'slow', 'loop', 'never', 'kwargs'];
  const ends = await Promise.allSettled(ways.map((way) => call(process, way)));
  const late = { status: 'rejected', reason: new Error('no answer within 0.7 s') };
  const is = (value: unknown): unknown => ({ status: 'fulfilled', value });
  expect(ends).toEqual([is(1), is(2), late, late, is(0.5)]);
});

test('a loop behind an await is killed, too, and the next calls are answered', async () => {
  const process = start(700);
  await expect(call(process, 'loopLater')).rejects.toThrow('no answer within 0.7 s');
  expect(await Promise.all([call(process, 'count'), call(process, 'kwargs')])).toEqual([1, 0.5]);
  // One that only waits for too long is left in peace.
  await expect(call(process, 'never')).rejects.toThrow('no answer within 0.7 s');
  await sleep(1000);
  expect(await call(process, 'count')).toBe(2);
});

test.each([
  ['exit', /^its process ended with exit code 0$/],
  ['exitLater', /^its process ended with exit code 0$/],
  ['kill', /^its process ended with SIGKILL$/],
  ['floats', /left something behind that failed later.*: floating boom$/],
  ['large', /^it returned 500000\d\d characters of JSON for one response, and 65536 are the most/],
])('%s fails for its response alone', async (way, message) => {
  const process = start();
  await expect(call(process, way)).rejects.toThrow(message);
  expect(await call(process, 'kwargs')).toBe(0.5);
});

test('signals that a scheduler sends to every process of a job end no reward', async () => {
  const process = start();
  await process.start();
  expect(await call(process, 'told')).toBe(3);
});

test('what it throws is cut short and has no control characters', async () => {
  const error = await call(start(), 'throws').catch((thrown: Error) => thrown);
  expect((error as Error).message).toMatch(/^boom \\x1b\[2Jxxx/);
  expect((error as Error).message.length).toBeLessThan(3000);
});

test.each([
  ['cjs', 'exports.compute_score = '],
  ['mjs', 'export const compute_score = '],
])('what it throws is told with the line of its file: .%s', async (ending, declared) => {
  const file = write(
    `place.${ending}`,
    `const inner = (row) => row.missing.length;\n${declared}({ extraInfo }) =>\n  extraInfo === null ? JSON.parse('{') : inner(extraInfo);\n`,
  );
  const process = start(20_000, file);
  const of = (extraInfo: unknown) => process.call({ extraInfo });
  await expect(of({})).rejects.toThrow(
    `Cannot read properties of undefined (reading 'length'), at ${file}:1`,
  );
  await expect(of(null)).rejects.toThrow(new RegExp(`JSON.*, at ${file}:3$`));
});

test('an error after the answer is told at the next call', async () => {
  const process = start();
  expect(await call(process, 'throwsLater')).toBe(1);
  await sleep(1000);
  await expect(call(process, 'kwargs')).rejects.toThrow(
    /left something behind that failed later.*: late boom/,
  );
  expect(await call(process, 'kwargs')).toBe(0.5);
});

test.each([
  ['exits.cjs', 'process.exit(0)', Error, /while its module was loaded, its process ended with exit code 0/],
  ['throws.cjs', 'throw new Error("no")', Error, /reward\.custom_reward_function\.path: could not load .*no/],
  ['lacks.cjs', 'exports.other = () => 1', Error, /exports no function 'compute_score'; it exports: other/],
])('%s: loading says so', async (name, text, type, message) => {
  const process = start(20_000, write(name, text));
  const error = await process.start().catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(type);
  expect((error as Error).message).toMatch(message);
  await expect(call(process, 'count')).rejects.toThrow(message);
});

test('a manager sees a function like any other', async () => {
  const process = start(500);
  const manager = createRewardManager('naive', (sample: unknown) => process.call(sample) as Promise<number>, {
    onError: 'zero',
    timeoutMs: 1,
  });
  const sample = (response: string) => ({
    prompt: '',
    response,
    responseTokens: Int32Array.of(1),
    groundTruth: 5n,
    dataSource: 'x',
    extraInfo: {},
  });
  const rewards = await manager.score(['kwargs', 'loop', 'slow', 'exit'].map(sample));
  expect([...rewards.scores]).toEqual([0.5, 0, 2, 0]);
  expect(rewards.failures).toBe(2);
});

test('a closed process fails its calls', async () => {
  const process = start();
  const waiting = settle(() => call(process, 'never'), 1000);
  process.close();
  await expect(waiting).rejects.toThrow(/was closed/);
  await expect(call(process, 'count')).rejects.toThrow(/was closed/);
});
