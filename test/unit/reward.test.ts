import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { exactMatch } from '../../ts/reward/exact_match';
import { scoreGsm8k } from '../../ts/reward/gsm8k';
import { loadRewardFunction } from '../../ts/reward/load';
import { computeRewards } from '../../ts/reward/manager';
import { registerRewardFunction, rewardByDataSource } from '../../ts/reward/reward';
import type { RewardFunction, RewardSample } from '../../ts/reward/types';

const sample = (response: string, more: Partial<RewardSample> = {}): RewardSample => ({
  prompt: '1+1=',
  response,
  responseTokens: Int32Array.of(1),
  groundTruth: '2',
  dataSource: 'sums',
  extraInfo: {},
  ...more,
});

const recorded = JSON.parse(
  readFileSync(join(__dirname, '../fixtures/conformance/reward_head.json'), 'utf8'),
);

test.each(recorded.gsm8k as Record<string, string | number>[])('gsm8k $s', (c) => {
  const [text, truth] = [c['s'] as string, c['gt'] as string];
  expect(scoreGsm8k(text, truth)).toBe(c['strict']);
  expect(scoreGsm8k(text, truth, { method: 'flexible' })).toBe(c['flexible']);
  expect(scoreGsm8k(text, truth, { formatScore: 0.1 })).toBe(c['fmt0.1']);
});

test('gsm8k takes megabytes in bounded time', () => {
  const start = Date.now();
  expect(scoreGsm8k(`${'1,'.repeat(4_000_000)} #### 5`, '5')).toBe(1);
  expect(Date.now() - start).toBeLessThan(500);
});

test('exact match trims and takes several truths', () => {
  expect(exactMatch(sample(' 2\n'))).toBe(1);
  expect(exactMatch(sample('22'))).toBe(0);
  expect(exactMatch(sample('b', { groundTruth: ['a', 'b'] }))).toBe(1);
});

describe('computeRewards', () => {
  test('keeps order, splits extras, and counts a boolean as 0 or 1', async () => {
    const fn: RewardFunction = async ({ response }) => {
      await new Promise((done) => setTimeout(done, 20 - 10 * response.length));
      return response === 'a' ? { score: 0.5, acc: true, pred: 'x' } : response === 'b' ? true : 0.25;
    };
    const rewards = await computeRewards(fn, [sample('a'), sample('b'), sample('cc')]);
    expect([...rewards.scores]).toEqual([0.5, 1, 0.25]);
    expect(rewards.extras).toEqual({ acc: [true, 1, 0.25], pred: ['x', undefined, undefined] });
  });

  test.each<[string, RewardFunction, RegExp]>([
    [
      'throws',
      () => {
        throw new Error('boom');
      },
      /failed \(boom\) for response 1/,
    ],
    ['NaN', () => Number.NaN, /expected a finite number .* got NaN/],
    ['no score', () => ({ acc: 1 }) as never, /got \{ score: undefined \}/],
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
