import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadConfig } from '../../../ts/config/config';
import { isBounded } from '../../../ts/reward/contract/bounded';
import { registerRewardManager } from '../../../ts/reward/contract/manager_registry';
import type { RewardFunction, RewardManagerOptions, Rewards } from '../../../ts/reward/contract/types';
import { exactMatch } from '../../../ts/reward/graders/exact_match';
import { primeMath } from '../../../ts/reward/graders/prime_math';
import { loadRewardFunction } from '../../../ts/reward/load';
import { createRewardManager } from '../../../ts/reward/manager';
import { registerRewardFunction, rewardByDataSource } from '../../../ts/reward/reward';
import { rewardOptions } from '../../../ts/roles/settings';
import { writeConfig } from '../config/write_config';
import { sample } from './sample';

const computeRewards = (
  fn: RewardFunction,
  samples: ReturnType<typeof sample>[],
  options?: RewardManagerOptions,
): Promise<Rewards> => createRewardManager('naive', fn, options).score(samples);

test.each([
  ['', 64],
  ['reward.sandbox.max_concurrent=100', 100],
  ['reward.sandbox.max_concurrent=3', 64],
  ['reward.sandbox_fusion={url: "http://fusion", max_concurrent: 130}', 130],
])('%s: %d responses at once', async (override, expected) => {
  const config = loadConfig(writeConfig(), override === '' ? [] : [override]);
  let [now, most] = [0, 0];
  const fn: RewardFunction = async () => {
    most = Math.max(most, ++now);
    await new Promise(setImmediate);
    now--;
    return 1;
  };
  const manager = createRewardManager('naive', fn, rewardOptions(config, true));
  const some = (length: number) => Array.from({ length }, () => sample('a'));
  await manager.score(some(200));
  expect(most).toBe(expected);
  // Of all calls together: of prompts ahead, each one is a call.
  most = 0;
  await Promise.all(Array.from({ length: 50 }, () => manager.score(some(4))));
  expect(most).toBe(expected);
});

test('comparisons of prime_math that stand in line do not count against the time-out', () => {
  expect(isBounded(primeMath(sample('\\boxed{1}', { groundTruth: '1' })))).toBe(true);
});

test('what a reward throws reaches the terminal short and without control characters', async () => {
  const fn: RewardFunction = () => {
    throw new Error(`\x1b[2J\x9b${'y'.repeat(1e6)}`);
  };
  const odd = sample('\x9b\u202e\x7f', { groundTruth: '\x9b', dataSource: `\x9b${'d'.repeat(1e6)}` });
  const error: Error = await computeRewards(fn, [odd]).then(
    () => new Error('it passed'),
    (thrown) => thrown,
  );
  expect(error.message).toMatch(/failed \(\\x1b\[2J\\x9byyy/);
  expect(error.message).not.toMatch(/[\p{Cc}\u202e]/u);
  expect(error.message.length).toBeLessThan(3000);
});

test('more beside the score than a run can keep is refused', async () => {
  const returning =
    (length: number): RewardFunction =>
    () => ({ score: 1, notes: 'x'.repeat(length) });
  await expect(computeRewards(returning(65_536), [sample('a')])).rejects.toMatchObject({
    code: 'REWARD_FAILED',
    message: expect.stringMatching(
      /it returned 655\d\d characters of JSON for one response, and 65536 are the most/,
    ),
  });
  expect((await computeRewards(returning(65_000), [sample('a')])).failures).toBe(0);
});

test('exact match trims and takes several truths', () => {
  expect(exactMatch(sample(' 2\n'))).toBe(1);
  expect(exactMatch(sample('22'))).toBe(0);
  expect(exactMatch(sample('b', { groundTruth: ['a', 'b'] }))).toBe(1);
});

const circle: { score: number; self?: unknown } = { score: 1 };
circle.self = circle;
let depth: { score: number; inner?: unknown } = { score: 1 };
for (let i = 0; i < 100_000; i++) depth = { score: 1, inner: depth };

describe('naive', () => {
  test('keeps order, splits extras, and counts a boolean as 0 or 1', async () => {
    const fn: RewardFunction = async ({ response }) => {
      await new Promise((done) => setTimeout(done, 20 - 10 * response.length));
      return response === 'a' ? { score: 0.5, acc: true, pred: 'x' } : response === 'b' ? true : 0.25;
    };
    const rewards = await computeRewards(fn, [sample('a'), sample('b'), sample('cc')]);
    expect([...rewards.scores]).toEqual([0.5, 1, 0.25]);
    expect(rewards.extras).toEqual({
      score: [0.5, undefined, undefined],
      acc: [true, 1, 0.25],
      pred: ['x', undefined, undefined],
    });
  });

  test.each<[string, RewardFunction, RegExp]>([
    [
      'throws',
      () => {
        throw new Error('boom');
      },
      /failed \(boom, at .*naive\.test\.ts:\d+\) for response 1/,
    ],
    ['NaN', () => Number.NaN, /expected a finite number .* got NaN/],
    ['no score', () => ({ acc: 1 }) as never, /got an object without score: \{.?"acc.?":1\}/],
    ['returns text', () => '1' as never, /got \\?"1\\?" for response 1/],
    ['returns text as score', () => ({ score: '1' }) as never, /got \{ score: "1" \}/],
    ['returns a list', () => [0.5] as never, /got \[0.5\]/],
    ['returns null', () => null as never, /got null/],
    [
      'NaN beside the score',
      () => ({ score: 1, loss: Number.NaN }),
      /expected finite numbers beside the score .* got loss = NaN for response 1 of the batch: data_source/,
    ],
    [
      'an infinity within what is beside the score',
      () => ({ score: 1, steps: [{ loss: 0 }, { loss: -Infinity }] }),
      /got steps\[1\]\.loss = -Infinity for response 1/,
    ],
    ['returns 1n', () => 1n as never, /expected a finite number .* got 1n for/],
    ['returns a score of 1n', () => ({ score: 1n }) as never, /got \{ score: 1n \} for/],
    ['rejects with nothing', () => Promise.reject(), /failed \(undefined\)/],
    [
      'throws what has no text',
      () => {
        throw Object.create(null);
      },
      /failed \(something that has no text\)/,
    ],
    [
      'has a getter that throws',
      () => ({
        get score(): number {
          throw new Error('gone');
        },
      }),
      /got some that are none \(gone, at .*naive\.test\.ts:\d+\)/,
    ],
    ['returns a circle', () => circle, /expected JSON values beside the score .*circular/],
    ['returns a depth', () => depth, /expected JSON values beside the score .*Maximum call stack/],
    ['hangs', () => new Promise(() => {}), /no answer within 0.05 s/],
  ])('a function that %s names the sample, or scores 0', async (_, broken, message) => {
    const fn: RewardFunction = (s) => (s.response === 'bad' ? broken(s) : 1);
    const samples = [sample('good'), sample('bad'), sample('good')];
    const failed = computeRewards(fn, samples, { timeoutMs: 50 });
    await expect(failed).rejects.toThrow(message);
    await expect(failed).rejects.toMatchObject({
      code: 'REWARD_FAILED',
      message: expect.stringMatching(/"sums".*"bad"/),
    });
    const rewards = await computeRewards(fn, samples, { timeoutMs: 50, onError: 'zero' });
    expect([...rewards.scores]).toEqual([1, 0, 1]);
    expect(rewards.failures).toBe(1);
  });

  test('keys of the extras may be any, those of objects included', async () => {
    const extra = '"__proto__": [6], "constructor": 7, "toString": 8';
    const fn: RewardFunction = ({ response }) => JSON.parse(`{"score": 1${response}}`);
    const rewards = await computeRewards(fn, [sample(''), sample(`, ${extra}`)]);
    expect(JSON.stringify(rewards.extras)).toBe(
      '{"score":[1,1],"__proto__":[null,[6]],"constructor":[null,7],"toString":[null,8]}',
    );
    for (const shared of [Object.prototype, Object, Object.prototype.toString])
      expect(Object.keys(shared)).toEqual([]);
  });

  test('a time-out longer than timers know is none that is over at once', async () => {
    const fn: RewardFunction = () => new Promise((done) => setTimeout(() => done(1), 20));
    expect([...(await computeRewards(fn, [sample('a')], { timeoutMs: 1e12 })).scores]).toEqual([1]);
  });

  test('gives the function its keyword arguments', async () => {
    const fn: RewardFunction = (_, kwargs) => kwargs?.['bonus'] as number;
    const rewards = await computeRewards(fn, [sample('x')], { kwargs: { bonus: 0.5 } });
    expect([...rewards.scores]).toEqual([0.5]);
  });

  test('names BigInt ground truths in errors', async () => {
    const run = computeRewards(() => Number.NaN, [sample('x', { groundTruth: 7n })]);
    await expect(run).rejects.toThrow(/ground truth "7", response/);
  });

  test('an unknown data source is an error whatever on_error says', async () => {
    const run = computeRewards(rewardByDataSource, [sample('x')], { onError: 'zero' });
    await expect(run).rejects.toThrow(/no reward function is registered as 'sums'.*openai\/gsm8k/);
  });

  test('routes by data source', async () => {
    const fn: RewardFunction = () => 3;
    registerRewardFunction('routed', fn);
    expect(() => registerRewardFunction('routed', () => 4)).toThrow(/already registered/);
    const rewards = await computeRewards(rewardByDataSource, [
      sample('', { dataSource: 'routed' }),
      sample('#### 2', { dataSource: 'openai/gsm8k' }),
    ]);
    expect([...rewards.scores]).toEqual([3, 1]);
  });
});

describe('registry', () => {
  test('takes a manager of the user, once per name', async () => {
    registerRewardManager('constant', () => ({
      score: async (samples) => ({
        scores: new Float64Array(samples.length).fill(7),
        extras: {},
        failures: 0,
      }),
    }));
    const manager = createRewardManager('constant', () => 0);
    expect([...(await manager.score([sample('x')])).scores]).toEqual([7]);
    expect(() => registerRewardManager('naive', () => manager)).toThrow(/already registered as 'naive'/);
  });

  const rewards = { scores: [1], extras: { acc: [1] }, failures: 0 };
  test.each<[string, unknown, RegExp]>([
    ['nothing', undefined, /expected \{ scores, extras, failures \} from score, got undefined/],
    ['too few scores', { ...rewards, scores: [] }, /scores: expected 1 numbers, got 0/],
    ['no scores', { ...rewards, scores: 1 }, /scores: expected 1 numbers, got 1/],
    [
      'NaN',
      { ...rewards, scores: [Number.NaN] },
      /scores\[0\]: expected a finite number, got NaN for response 0 of the batch \(data_source "[^"]*"\)/,
    ],
    ['a text', { ...rewards, scores: ['1'] }, /scores\[0\]: expected a finite number, got "1"/],
    ['no extras', { ...rewards, extras: null }, /extras: expected an object of arrays, got null/],
    ['a short column', { ...rewards, extras: { acc: [] } }, /extras\.acc: expected 1 values, got 0/],
    [
      'NaN beside',
      { ...rewards, extras: { acc: [Number.NaN] } },
      /extras\.acc\[0\]: expected finite numbers, got NaN/,
    ],
    [
      'NaN within',
      { ...rewards, extras: { all: [{ one: [Infinity] }] } },
      /extras\.all\[0\] \(one\[0\]\): expected finite numbers, got Infinity for response 0/,
    ],
    ['failures', { ...rewards, failures: 2 }, /failures: expected an integer from 0 to 1, got 2/],
  ])('rewards of such a manager are looked at: %s', async (kind, given, message) => {
    registerRewardManager(`gives ${kind}`, () => ({ score: async () => given as Rewards }));
    const manager = createRewardManager(`gives ${kind}`, () => 0);
    await expect(manager.score([sample('x')])).rejects.toMatchObject({
      code: 'REWARD_FAILED',
      message: expect.stringMatching(message),
    });
    await expect(manager.score([sample('x')])).rejects.toThrow(`the reward manager 'gives ${kind}': `);
  });

  test('what is no manager is refused', () => {
    registerRewardManager('none', () => ({}) as never);
    expect(() => createRewardManager('none', () => 0)).toThrow(
      "the reward manager 'none': expected { score(samples) } from its factory, got {}",
    );
  });

  test('names what there is', () => {
    expect(() => createRewardManager('naiv', () => 0)).toThrow(
      /expected one of naive, batch, prime, dapo, gdpo, rate_limited.*got "naiv"/,
    );
  });
});

describe('loadRewardFunction', () => {
  const dir = mkdtempSync(join(tmpdir(), 'reward-'));
  const write = (name: string, text: string): string => {
    writeFileSync(join(dir, name), text);
    return join(dir, name);
  };

  test('loads an export', () => {
    const path = write('ok.cjs', 'exports.compute_score = ({ response }) => response.length;');
    expect(loadRewardFunction(path, 'compute_score')(sample('abc'))).toBe(3);
    expect(() => loadRewardFunction(path, 'other')).toThrow(
      /exports no function 'other'; it exports: compute_score/,
    );
  });

  test('says which file is missing or broken', () => {
    expect(() => loadRewardFunction(join(dir, 'no.js'), 'f')).toThrow(/there is no file .*no\.js/);
    expect(() => loadRewardFunction(write('bad.cjs', 'throw new Error("oops")'), 'f')).toThrow(
      /bad\.cjs: oops/,
    );
    expect(() => loadRewardFunction(null, 'not-there')).toThrow(/no reward function is registered/);
  });
});
