import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { RewardFunction, RewardSample } from '../../ts/reward/contract/types';
import { createRewardManager } from '../../ts/reward/manager';
import { RewardProcess } from '../../ts/reward/scorers/reward_process';
import { allGone } from '../helpers/e2e_process';

// Reward functions in Python, with the python3 of this machine, whatever they do there.

const directory = mkdtempSync(join(tmpdir(), 'python-reward-'));
const write = (name: string, text: string): string => {
  const path = join(directory, name);
  writeFileSync(path, text);
  return path;
};

// A copy: Python writes beside what it imports.
const FUNCTION = write(
  'python_reward.py',
  readFileSync(join(__dirname, '..', 'fixtures', 'python_reward.py'), 'utf8'),
);

const made: RewardProcess[] = [];
afterEach(() => {
  for (const process of made.splice(0)) process.close();
});

interface Given {
  name?: string;
  path?: string;
  python?: string;
  batch?: boolean;
  timeoutMs?: number;
  kwargs?: Record<string, unknown>;
}

const start = ({ timeoutMs = 20_000, kwargs = { bonus: 0.5 }, ...module }: Given = {}): RewardProcess => {
  const process = new RewardProcess(
    {
      kind: 'function',
      module: { path: FUNCTION, name: 'compute_score', ...module },
      libraries: [],
      kwargs,
    },
    timeoutMs,
  );
  made.push(process);
  return process;
};

const sample = (response: string, more: Partial<RewardSample> = {}): RewardSample => ({
  prompt: '',
  response,
  responseTokens: Int32Array.of(1),
  groundTruth: '5',
  dataSource: 'd',
  extraInfo: {},
  ...more,
});
const call = (process: RewardProcess, response: string): Promise<unknown> => process.call(sample(response));

test('what it returns comes as JavaScript has it', async () => {
  const process = start();
  const results: unknown[] = [];
  const ways = ['int', 'bool', 'false', 'float', 'minus', 'scalar', 'decimal', 'fraction', 'nan', 'inf'];
  for (const way of ways) results.push(await call(process, way));
  expect(results).toEqual([2, true, false, 0.1 + 0.2, -0, 0.25, 0.5, 0.125, Number.NaN, -Infinity]);
  const { score, acc, pred, all, ...more } = (await call(process, 'dict')) as Record<string, unknown>;
  expect([score, acc, pred, all]).toEqual([1.5, true, '\ud800 é 😀\n', [1, [null]]]);
  expect(Object.entries(more)).toEqual([
    ['3', [1, 2]],
    ['__proto__', 1],
  ]);
  expect(await call(process, 'extras')).toEqual({ score: 1, loss: Number.NaN, most: Infinity });
});

test('it sees what verl gives it', async () => {
  const process = start();
  const groundTruth = 12345678901234567890n;
  const extraInfo = {
    index: 3,
    share: Number.NaN,
    deep: [{ a: -Infinity }, 2.5],
    absent: null,
    many: 9007199254740993n,
  };
  const seen = await process.call(sample('sees', { groundTruth, extraInfo, numTurns: 4 }));
  expect(seen).toEqual({
    score: 1,
    types: 'int',
    truth: '12345678901234567890',
    source: 'd',
    info: { ...extraInfo, many: 2 ** 53, num_turns: 4, rollout_reward_scores: {} },
  });
  const { types } = (await process.call(sample('sees', { groundTruth: undefined }))) as { types: string };
  expect(types).toBe('NoneType');
  expect(await call(process, 'kwargs')).toBe(0.5);
});

test.each([
  ['half', '\ud83d', 1, 0xd83d],
  ['whole', '😀', 1, 0x1f600],
  ['line ends', '\n\r\u2028\0', 4, 10],
  ['long', 'é'.repeat(3_000_00), 300_000, 0xe9],
])('text is the same on both sides: %s', async (_, text, length, code) => {
  const process = start({ name: 'same', kwargs: {} });
  const result = process.call(sample(text));
  if (text.length < 1000) expect(await result).toEqual({ score: 1, text, length, code });
  else await expect(result).rejects.toThrow(/^it returned 3000\d\d characters of JSON for one response/);
});

test('a process keeps its variables, and what it prints harms nothing', async () => {
  const process = start();
  const results: unknown[] = [];
  for (const way of ['count', 'prints', 'count', 'runs']) results.push(await call(process, way));
  expect(results).toEqual([1, 1, 2, 5]);
  expect(await call(process, 'pid')).toBe(await call(process, 'pid'));
});

test.each(['fork', 'spawn'])('it may have processes of its own: %s', async (way) => {
  expect(await call(start(), way)).toBe(6);
});

test('a name that another module has is no other module', async () => {
  const text = 'import json\ndef compute_score(**given):\n    return len(json.dumps([1]))\n';
  expect(await call(start({ path: write('json.py', text), kwargs: {} }), 'any')).toBe(3);
});

test('signals of a scheduler end no reward, and end children of the function', async () => {
  const process = start();
  expect(await call(process, 'told')).toBe(3);
  expect(await call(process, 'child')).toBe(-15);
});

test.each([
  [
    'raise',
    /^ValueError: bad x, at .*python_reward\.py:\d+ in inner: raise ValueError.*, from .* in compute_score: return WAYS/,
  ],
  ['late', /^KeyError: 'outer' \(after ValueError: bad x\), at .* in late: raise KeyError/],
  ['huge', /^ValueError: bad x{280,300}… \(50000\d\d characters\), at .* in inner: /],
  ['exit', /^SystemExit: 3, at /],
  ['unprintable', /^Unprintable$/],
  ['evasive', /^Evasive$/],
  ['nowhere', /^ValueError: made up, at <string>:1 in <module>: , from .* in nowhere: exec/],
  ['end', /^its process ended with exit code 4$/],
  ['channel', /^it wrote to the socket of its process \(file descriptor 4\)$/],
  ['large', /^it returned 500000\d\d characters of JSON for one response, and 65536 are the most/],
  ['object', /^it returned what is no JSON value at \['more'\]\['it'\]: object/],
])('%s fails for its response alone', async (way, message) => {
  const process = start();
  const error = await call(process, way).catch((thrown: Error) => thrown);
  expect((error as Error).message).toMatch(message);
  expect((error as Error).message.length).toBeLessThan(2100);
  expect(await call(process, 'kwargs')).toBe(0.5);
});

test.each(['leaves', 'leaves and ends'])('what it has started ends with it: %s', async (way) => {
  const process = start();
  const file = join(directory, 'left');
  const result = process.call(sample(way, { extraInfo: { file } }));
  if (way === 'leaves') writeFileSync(file, String(await result));
  else await expect(result).rejects.toThrow('its process ended with exit code 5');
  if (way === 'leaves') process.close();
  expect(await allGone([Number(readFileSync(file, 'utf8'))], 10_000)).toBe(true);
});

test('many calls at once, of which some end the process: the others have their answers', async () => {
  const process = start();
  await process.start();
  const ways = Array.from({ length: 200 }, (_, i) => (i % 20 === 13 ? 'end' : 'int'));
  // So much that some is still to be sent when it ends.
  const extraInfo = { text: 'x'.repeat(20_000) };
  const ends: PromiseSettledResult<unknown>[] = [];
  let next = 0;
  const lane = async (): Promise<void> => {
    while (next < ways.length) {
      const i = next++;
      [ends[i]] = await Promise.allSettled([process.call(sample(ways[i] as string, { extraInfo }))]);
    }
  };
  await Promise.all(Array.from({ length: 64 }, lane));
  for (const [i, way] of ways.entries())
    expect([i, ends[i]?.status]).toEqual([i, way === 'end' ? 'rejected' : 'fulfilled']);
});

test('letters beyond ASCII count as in JavaScript', async () => {
  expect(await call(start(), 'wide')).toEqual({ score: 1, notes: 'é'.repeat(60_000) });
});

test.each(['loop', 'backtrack'])('%s is killed at its time-out, and the next call goes on', async (way) => {
  const process = start({ timeoutMs: 700 });
  const ends = await Promise.allSettled(['kwargs', way, 'count'].map((one) => call(process, one)));
  expect(ends).toEqual([
    { status: 'fulfilled', value: 0.5 },
    { status: 'rejected', reason: new Error('no answer within 0.7 s') },
    { status: 'fulfilled', value: 1 },
  ]);
});

describe.each(['slowly', 'called'])('an async function: %s', (name) => {
  test('runs many at a time', async () => {
    const process = start({ name, kwargs: {} });
    await process.start();
    const before = performance.now();
    const results = await Promise.all(Array.from({ length: 40 }, () => call(process, 'slow')));
    expect(results).toEqual(Array.from({ length: 40 }, (_, i) => i + 1));
    // One after another they would take 12 s.
    expect(performance.now() - before).toBeLessThan(10_000);
  });

  test('fails alone', async () => {
    const process = start({ name, kwargs: {}, timeoutMs: 1000 });
    const ways = ['quick', 'never', 'raise', 'exit', 'quick'];
    const ends = await Promise.allSettled(ways.map((way) => call(process, way)));
    expect(
      ends.map((end) => (end.status === 'fulfilled' ? end.value : (end.reason as Error).message)),
    ).toEqual([
      1,
      'no answer within 1 s',
      expect.stringMatching(/^ValueError: bad async, at .* in inner/),
      expect.stringMatching(/^SystemExit: 3/),
      2,
    ]);
  });

  test('is killed when it loops', async () => {
    const process = start({ name, kwargs: {}, timeoutMs: 700 });
    const ends = await Promise.allSettled(['slow', 'loop', 'quick'].map((way) => call(process, way)));
    expect(ends.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    await expect(call(process, 'later')).rejects.toThrow('no answer within 0.7 s');
    expect(await call(process, 'quick')).toBe(1);
  });
});

test('verl’s batch manager gives lists', async () => {
  const process = start({ name: 'batched', batch: true });
  const samples = ['a', 'b'].map((response, index) => sample(response, { extraInfo: { index } }));
  const manager = createRewardManager('batch', ((given: unknown) => process.call(given)) as RewardFunction);
  const { scores, extras } = await manager.score(samples);
  expect([...scores]).toEqual([0.5, 0.5]);
  expect(extras['all']).toEqual([
    ['d', 'a', '5', 0],
    ['d', 'b', '5', 1],
  ]);
  await expect(manager.score([sample('raise', { extraInfo: { index: 0 } })])).rejects.toThrow(
    /the reward function failed \(ValueError: bad batch, at .*for a batch of 1 responses/,
  );
});

test.each([
  ['none', /expected a finite number from the reward function but got null/],
  ['text', /expected a finite number from the reward function but got "1"/],
  ['nan', /expected a finite number from the reward function but got NaN/],
  ['inf', /expected a finite number from the reward function but got -Infinity/],
  ['list', /expected a finite number from the reward function but got \[1\]/],
  ['raise', /the reward function failed \(ValueError: bad x, at .* for response 1 of the batch/],
])('a bad reward is told as that of JavaScript: %s', async (way, message) => {
  const process = start();
  const manager = createRewardManager('naive', ((given: unknown) => process.call(given)) as RewardFunction);
  const given = [sample('int'), sample(way)];
  await expect(manager.score(given)).rejects.toMatchObject({
    code: 'REWARD_FAILED',
    message: expect.stringMatching(message),
  });
  const lenient = createRewardManager('naive', ((one: unknown) => process.call(one)) as RewardFunction, {
    onError: 'zero',
  });
  expect(await lenient.score(given)).toMatchObject({ scores: Float64Array.of(2, 0), failures: 1 });
});

test('prime runs it in processes of its own', async () => {
  const module = { path: FUNCTION, name: 'compute_score' };
  const manager = createRewardManager('prime', () => 0, {
    module,
    kwargs: { bonus: 0.25 },
    numWorkers: 2,
    timeoutMs: 3000,
  });
  try {
    const ways = ['kwargs', 'loop', 'end', 'int', 'kwargs'];
    const { scores, failures } = await manager.score(ways.map((way) => sample(way)));
    expect([...scores]).toEqual([0.25, 0, 0, 2, 0.25]);
    expect(failures).toBe(2);
  } finally {
    await manager.close?.();
  }
});

describe('what is wrong is told at the start', () => {
  const BROKEN = write('broken.py', 'x = 1\nimport there_is_no_such_module\n');
  const SYNTAX = write('syntax.py', 'def compute_score(:\n');
  const EXITS = write('exits.py', 'import sys\nsys.exit("no licence")\n');
  const ENDS = write('ends.py', 'import os\nos._exit(7)\n');

  test.each<[string, Given, RegExp]>([
    [
      'an import',
      { path: BROKEN },
      /path: .*\(Python 3\.\S+\) could not load .*broken\.py: ModuleNotFoundError: No module named 'there_is_no_such_module', at .*broken\.py:2.*\. Install the package that has it into this Python, or name one that has it \(reward\.custom_reward_function\.python\)/,
    ],
    ['its syntax', { path: SYNTAX }, /could not load .*syntax\.py: SyntaxError: .*syntax\.py, line 1/],
    ['its exit', { path: EXITS }, /could not load .*exits\.py: SystemExit: no licence/],
    [
      'a missing function',
      { name: 'compute' },
      /name: .*python_reward\.py has no function 'compute'; it has: .*compute_score, same, batched/,
    ],
    ['no function', { name: 'VALUE' }, /has no function 'VALUE'/],
    [
      'a generative one',
      { name: 'generative' },
      /the function asks for reward_router_address: it is one for generative reward models, which are not there/,
    ],
    [
      'a missing keyword',
      { name: 'wants', kwargs: {} },
      /cannot be called with data_source, solution_str, ground_truth, extra_info and reward_kwargs \(none\): missing a required argument: 'strict'/,
    ],
    [
      'an unknown keyword',
      { kwargs: { bonos: 1 } },
      /got an unexpected keyword argument 'bonos'; it is compute_score\(data_source/,
    ],
    ['the parameters', { name: 'old', kwargs: {} }, /got an unexpected keyword argument 'data_source'/],
    ['a batch function', { name: 'batched' }, /cannot be called with data_source, /],
    ['not a batch function', { batch: true }, /cannot be called with data_sources, /],
    [
      'a program that is no Python',
      { python: 'true' },
      /^reward\.custom_reward_function\.python: true, .* ended before it began to: expected Python 3\.8 or newer$/,
    ],
    [
      'the interpreter',
      { python: '/nowhere/python3' },
      /^reward\.custom_reward_function\.python: could not start \/nowhere\/python3.*ENOENT/,
    ],
  ])('%s', async (_, given, message) => {
    const error = await start(given)
      .start()
      .catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'INVALID_CONFIG', message: expect.stringMatching(message) });
  });

  test('a module that ends its process', async () => {
    await expect(start({ path: ENDS }).start()).rejects.toThrow(
      /while its module was loaded, its process ended with exit code 7/,
    );
  });
});

describe('it ends with its parent', () => {
  const PARENT = `
const { RewardProcess } = require('../../dist/reward/scorers/reward_process');
const process_ = new RewardProcess({ kind: 'function', module: { path: process.argv[1], name: 'compute_score' }, libraries: [], kwargs: {} }, 60000);
const call = (response) => process_.call({ response, dataSource: '', extraInfo: {} });
const [way, first] = process.argv[3] === 'leaves' ? ['kwargs', 'leaves'] : [process.argv[3], 'pid'];
call(first).then((pid) => { require('node:fs').writeFileSync(process.argv[2], String(pid)); return call(way); });
`;
  let parent: ChildProcess | undefined;
  afterEach(() => void parent?.kill('SIGKILL'));

  test.each(['loop', 'backtrack', 'kwargs', 'leaves'])('that is killed: %s', async (way) => {
    const marker = join(directory, `pid-${way}`);
    const program = way === 'kwargs' || way === 'leaves' ? `${PARENT}setInterval(() => {}, 1000);` : PARENT;
    parent = spawn(process.execPath, ['-e', program, FUNCTION, marker, way], {
      cwd: __dirname,
      stdio: 'inherit',
    });
    for (let i = 0; i < 200 && !(existsSync(marker) && readFileSync(marker, 'utf8')); i++) await sleep(50);
    const pid = Number(readFileSync(marker, 'utf8'));
    expect(existsSync(`/proc/${pid}`)).toBe(true);
    parent.kill('SIGKILL');
    await once(parent, 'exit');
    expect(await allGone([pid], 10_000)).toBe(true);
  });

  test('that has nothing left to do', async () => {
    const marker = join(directory, 'pid-done');
    parent = spawn(process.execPath, ['-e', PARENT, FUNCTION, marker, 'int'], {
      cwd: __dirname,
      stdio: 'inherit',
    });
    expect(await once(parent, 'exit')).toEqual([0, null]);
    expect(await allGone([Number(readFileSync(marker, 'utf8'))], 10_000)).toBe(true);
  });
});
