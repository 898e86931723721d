import { createServer } from 'node:net';
import { loadConfig } from '../../ts/config/config';
import { codeReward } from '../../ts/reward/code/code_reward';
import { PythonSandbox } from '../../ts/reward/code/python_sandbox';
import { SandboxFusion } from '../../ts/reward/code/sandbox_fusion';
import type { RewardOutcome, RewardSample } from '../../ts/reward/contract/types';
import { createRewardManager } from '../../ts/reward/manager';
import { codeRunner } from '../../ts/trainer/code_runner';
import { defaultReward } from '../../ts/trainer/default_reward';
import { FusionServer } from '../helpers/fusion_server';
import { namespacesPermitted } from '../helpers/namespaces';
import { writeConfig } from '../unit/config/write_config';

// Responses with code against tests, in a sandbox here and over HTTP: the same scores.

const sample = (code: string, groundTruth: unknown): RewardSample => ({
  prompt: '',
  response: `Let me see.\n\`\`\`python\n${code}\n\`\`\`\nThat is it.`,
  responseTokens: Int32Array.of(1),
  groundTruth,
  dataSource: 'apps',
  extraInfo: {},
});

let sandbox: PythonSandbox;
let server: FusionServer;
beforeAll(async () => {
  const isolation = namespacesPermitted ? 'namespaces' : 'process';
  sandbox = await PythonSandbox.create({ timeout: 2, isolation });
  server = await FusionServer.start(sandbox);
});
afterAll(() => server.close());
beforeEach(() => {
  server.requests.length = 0;
  server.most = 0;
  server.misbehave = () => false;
});

const SQUARES = JSON.stringify({
  inputs: Array.from({ length: 12 }, (_, i) => `${i}\n`),
  outputs: Array.from({ length: 12 }, (_, i) => `${i * i}\n`),
});
const ADD = JSON.stringify({ fn_name: 'add', inputs: ['1\n2', '[1]\n[2]'], outputs: ['3', '[1, 2]'] });

describe.each(['here', 'over HTTP'])('%s', (where) => {
  const score = (code: string, groundTruth: unknown, continuous = true): Promise<RewardOutcome> => {
    const runner = where === 'here' ? sandbox : new SandboxFusion({ url: server.url, timeout: 2 });
    const reward = codeReward(async () => runner, { continuous });
    return Promise.resolve(reward(sample(code, groundTruth)));
  };

  test('a right answer, by the first 10 tests or by all', async () => {
    const right = 'n = int(input())\nprint(n * n)';
    expect(await score(right, SQUARES)).toEqual({
      score: 1,
      acc: 1,
      tests_passed: 10,
      tests_total: 10,
      verdict: 'accepted',
    });
    expect(await score(right, SQUARES, false)).toMatchObject({ score: 1, tests_total: 12 });
  });

  test('assertions run after the code, with the inputs and outputs where there are any', async () => {
    const square = 'def square(n):\n    return n * n';
    const asserted = { assert_case: ['assert square(3) == 9', 'assert square(2) == 5', 'print(square(1))'] };
    expect(await score(square, asserted)).toMatchObject({ score: 2 / 3, verdict: 'error' });
    const printed = {
      inputs: ['3', '4'],
      outputs: ['9', '9'],
      assert_case: Array(2).fill('print(square(int(input())))'),
    };
    expect(await score(square, printed)).toMatchObject({ score: 0.5, verdict: 'wrong_answer' });
    const called = {
      fn_name: 'square',
      inputs: ['3', '3'],
      outputs: [null, 9],
      assert_case: ['assert square(0) == 0', 'assert square(1) == 0'],
    };
    expect(await score(square, called)).toMatchObject({ score: 0.5, verdict: 'error' });
  });

  test('a partly right answer gets its share, or nothing', async () => {
    const partly = 'n = int(input())\nprint(n * n if n < 4 else 0)';
    expect(await score(partly, SQUARES)).toEqual({
      score: 0.4,
      acc: 0,
      tests_passed: 4,
      tests_total: 10,
      verdict: 'wrong_answer',
    });
    expect(await score(partly, SQUARES, false)).toMatchObject({ score: 0, acc: 0, verdict: 'wrong_answer' });
    const late = 'n = int(input())\nprint(n * n if n < 11 else 0)';
    expect(await score(late, SQUARES, false)).toMatchObject({ score: 0, tests_passed: 11 });
  });

  test('code that does not run, raises, or never ends', async () => {
    expect(await score('def f(:', SQUARES)).toMatchObject({ score: 0, verdict: 'error' });
    expect(await score('raise SystemExit(1)', SQUARES)).toMatchObject({ score: 0, verdict: 'error' });
    const loops = 'n = int(input())\nwhile n == 1: pass\nprint(n * n)';
    expect(await score(loops, SQUARES)).toMatchObject({ score: 0.1, tests_passed: 1, verdict: 'timeout' });
  });

  test.each([
    ['a function', 'def add(a, b):\n  print("noise")\n  return a + b'],
    [
      'a method, with the names that judges provide',
      'class Solution:\n  def add(self, a: List[int], b) -> Any:\n    return a + b',
    ],
    [
      'the functions of math, copy, io and json too',
      `def add(a, b):
  add.calls = deepcopy(StringIO(dumps(gcd(12, 18) + ceil(0.5)))).read() + str(pow(2, -1, 5))
  return a + b if (add.calls, statistics.mean([1]), inf > stdin.fileno()) == ("73", 1, True) else None`,
    ],
    ['a tuple for a list', 'def add(a, b):\n  return tuple(a + b) if isinstance(a, list) else a + b'],
  ])('%s', async (_, code) => {
    expect(await score(code, ADD)).toMatchObject({ score: 1, tests_total: 2 });
  });

  test('keys of a dict that are integers are integers in the one argument of a function', async () => {
    const tests = (...inputs: string[]) => ({ fn_name: 'f', inputs, outputs: inputs.map(() => '3') });
    const code = 'def f(d, *more): return d[1]';
    expect(await score(code, tests('{"1": 3, "-2": 4}'))).toMatchObject({ score: 1 });
    expect(await score(code, tests('{"1": 3, "a": 4}'))).toMatchObject({ score: 0, verdict: 'error' });
    expect(await score(code, tests('{"1": 3}\n2'))).toMatchObject({ score: 0, verdict: 'error' });
  });

  test('a function that is missing, prints instead, or returns what JSON has not', async () => {
    expect(await score('def sub(a, b): return a', ADD)).toMatchObject({ score: 0, verdict: 'error' });
    expect(await score('def add(a, b): print(a + b)', ADD)).toMatchObject({
      score: 0,
      verdict: 'wrong_answer',
    });
    expect(await score('def add(a, b): return float("nan")', ADD)).toMatchObject({
      score: 0,
      verdict: 'wrong_answer',
    });
    expect(await score('def add(a, b): return {1}', ADD)).toMatchObject({ score: 0, verdict: 'error' });
  });

  test('text outside ASCII, quotes and backslashes survive the way', async () => {
    const text = 'ü "\'\\n\\\\" 漢字 🙂';
    expect(
      await score(`print(input() + ${JSON.stringify('é"\\')})`, { inputs: [text], outputs: [`${text}é"\\`] }),
    ).toMatchObject({ score: 1 });
  });
});

test('a run takes a response without a fence as code where programs run here, as verl does', async () => {
  const isolation = `reward.sandbox.isolation=${namespacesPermitted ? 'namespaces' : 'process'}`;
  const score = (...overrides: string[]): RewardOutcome | Promise<RewardOutcome> => {
    const config = loadConfig(writeConfig(), [isolation, ...overrides]);
    const { reward } = defaultReward(config, codeRunner(config));
    const bare = sample('', { inputs: ['2'], outputs: ['4'] });
    return reward({ ...bare, response: 'n = int(input())\nprint(n * n)' });
  };
  expect(await score()).toMatchObject({ score: 1 });
  expect(await score(`reward.sandbox_fusion.url=${server.url}`)).toMatchObject({
    score: 0,
    verdict: 'no_code',
  });
});

test('waiting in line for the sandbox does not count as time of the reward', async () => {
  const narrow = await PythonSandbox.create({
    isolation: namespacesPermitted ? 'namespaces' : 'process',
    maxConcurrent: 1,
  });
  const reward = codeReward(async () => narrow);
  const samples = Array.from({ length: 4 }, () => sample('n = int(input())\nprint(n * n)', SQUARES));
  const { scores } = await createRewardManager('naive', reward, { timeoutMs: 1 }).score(samples);
  expect([...scores]).toEqual([1, 1, 1, 1]);
});

test('a ground truth without tests fails the sample by name', async () => {
  const rewards = createRewardManager(
    'naive',
    codeReward(async () => sandbox),
  ).score([sample('1', '42')]);
  await expect(rewards).rejects.toMatchObject({
    code: 'REWARD_FAILED',
    message: expect.stringMatching(/ground truth of a code problem: got 42.*data_source "apps"/),
  });
});

describe('Sandbox Fusion', () => {
  const client = (options: Partial<ConstructorParameters<typeof SandboxFusion>[0]> = {}): SandboxFusion =>
    new SandboxFusion({ url: server.url, retryDelayMs: 1, ...options });
  const hello = { code: 'print("hello")', stdin: 'in' };

  test('sends what the API names, to /run_code whether the URL has it or not', async () => {
    for (const url of [server.url, `${server.url}/`, `${server.url}/run_code`]) {
      const result = await client({ url, timeout: 3, memoryLimitMb: 512 }).run(hello);
      expect(result).toEqual({ status: 'finished', stdout: 'hello\n', stderr: '' });
    }
    expect(server.requests).toEqual(
      new Array(3).fill({
        code: 'print("hello")',
        language: 'python',
        stdin: 'in',
        run_timeout: 3,
        compile_timeout: 3,
        memory_limit_MB: 512,
      }),
    );
  });

  test('at most so many requests at once, over everything that shares it', async () => {
    const shared = client({ maxConcurrent: 3 });
    await Promise.all(Array.from({ length: 12 }, () => shared.run(hello)));
    expect(server.requests).toHaveLength(12);
    expect(server.most).toBe(3);
  });

  test.each([
    ['says 504', (response, count) => count < 3 && response.writeHead(504).end() !== null],
    ['hangs up', (response, count) => count < 3 && response.destroy() !== null],
    [
      'has trouble of its own',
      (response, count) =>
        count < 3 && response.end('{"status": "SandboxError", "message": "no slot"}') !== null,
    ],
  ] as [string, FusionServer['misbehave']][])('a server that %s is asked again', async (_, misbehave) => {
    server.misbehave = misbehave;
    expect(await client().run(hello)).toMatchObject({ stdout: 'hello\n' });
    expect(server.requests).toHaveLength(3);
  });

  test('a server that stays away is an error that says how often it was asked', async () => {
    server.misbehave = (response) => response.writeHead(504).end() !== null;
    await expect(client({ retries: 2 }).run(hello)).rejects.toMatchObject({
      code: 'SANDBOX_FAILED',
      message: expect.stringMatching(/HTTP 504 \(3 attempts\)/),
    });
    const closed = createServer().listen(0, '127.0.0.1');
    await new Promise((done) => closed.once('listening', done));
    const { port } = closed.address() as { port: number };
    await new Promise((done) => closed.close(done));
    await expect(client({ url: `http://127.0.0.1:${port}`, retries: 1 }).run(hello)).rejects.toThrow(
      /no answer \(.*ECONNREFUSED.*\) \(2 attempts\)/,
    );
  });

  test.each([
    ['HTTP 500', 500, 'Traceback', /HTTP 500: "Traceback"/],
    ['an answer that is not JSON', 200, '<html>', /the answer is not JSON: "<html>"/],
    ['half an answer', 200, '{"status": "Success", "run_re', /the answer is not JSON/],
    ['a list', 200, '[]', /expected a JSON object, got \[\]/],
    ['no result', 200, '{"status": "Success"}', /no run_result/],
    [
      'an unknown status',
      200,
      '{"run_result": {"status": "Great"}}',
      /TimeLimitExceeded or Error, got "Great"/,
    ],
  ])('%s is an error at once', async (_, status, body, message) => {
    server.misbehave = (response) => response.writeHead(status).end(body) !== null;
    await expect(client().run(hello)).rejects.toThrow(message);
    expect(server.requests).toHaveLength(1);
  });

  test('a slow server is waited for, a silent one is given up', async () => {
    server.misbehave = (response) => {
      setTimeout(() => response.end('{"run_result": {"status": "Finished", "stdout": "late"}}'), 300);
      return true;
    };
    for (const timeout of [10, 1e9])
      expect(await client({ timeout }).run(hello)).toMatchObject({ status: 'finished', stdout: 'late' });
    server.misbehave = () => true;
    await expect(client({ timeout: 0.05, patience: 0.1, retries: 1 }).run(hello)).rejects.toThrow(
      /no answer \(.*timeout.*\) \(2 attempts\): is the server up/,
    );
  });

  test.each([
    ['{"run_result": {"status": "TimeLimitExceeded", "stdout": "x"}}', { status: 'timeout', stdout: 'x' }],
    ['{"run_result": {"status": "Error", "stderr": "boom"}}', { status: 'error', stderr: 'boom' }],
    [
      '{"run_result": {"status": "Finished", "return_code": 1, "stdout": null}}',
      { status: 'error', stdout: '' },
    ],
    [
      '{"compile_result": {"status": "Finished", "return_code": 1, "stderr": "syntax"}, "run_result": null}',
      { status: 'error', stderr: 'syntax' },
    ],
    ['{"compile_result": {"status": "TimeLimitExceeded"}}', { status: 'timeout' }],
  ])('%s', async (body, expected) => {
    server.misbehave = (response) => response.writeHead(200).end(body) !== null;
    expect(await client().run(hello)).toMatchObject(expected);
  });

  test.each(['ftp://host', 'host:8080', ''])('a URL that is none: %j', (url) => {
    expect(() => client({ url })).toThrow(/url: expected http\(s\):\/\/host/);
  });
});
