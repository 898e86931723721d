import type {
  BatchRewardFunction,
  Clock,
  RateLimits,
  RewardFunction,
} from '../../../ts/reward/contract/types';
import { createRewardManager } from '../../../ts/reward/manager';
import { overlongReward } from '../../../ts/reward/managers/dapo';
import { TokenBucket } from '../../../ts/reward/managers/token_bucket';
import { sample } from './sample';

const samples = [sample('a'), sample('bb'), sample('ccc')];

describe('batch', () => {
  test('calls the function once, with everything', async () => {
    const sizes: number[] = [];
    const fn: BatchRewardFunction = async (all, kwargs) => {
      sizes.push(all.length);
      return all.map(({ response }, i) =>
        i === 1 ? { score: 9, pred: 'b' } : response.length * (kwargs?.['scale'] as number),
      );
    };
    const manager = createRewardManager('batch', fn, { kwargs: { scale: 2 } });
    const rewards = await manager.score(samples);
    expect(sizes).toEqual([3]);
    expect([...rewards.scores]).toEqual([2, 9, 6]);
    expect(rewards.extras).toEqual({
      score: [undefined, 9, undefined],
      acc: [2, undefined, 6],
      pred: [undefined, 'b', undefined],
    });
    expect((await manager.score([])).scores).toHaveLength(0);
    expect(sizes).toEqual([3]);
  });

  test.each<[string, () => unknown, RegExp]>([
    ['one score', () => 1, /expected an array of 3 scores .* got number/],
    ['too few', () => [1, 2], /expected an array of 3 scores .* got an array of 2/],
    [
      'an error',
      () => Promise.reject(new Error('boom')),
      /failed \(boom, at .*managers\.test\.ts:\d+\) for a batch of 3 responses/,
    ],
    ['nothing, ever', () => new Promise(() => {}), /no answer within 0.05 s/],
  ])('%s fails the batch, or scores it 0', async (_, fn, message) => {
    const run = createRewardManager('batch', fn as BatchRewardFunction, { timeoutMs: 50 }).score(samples);
    await expect(run).rejects.toMatchObject({
      code: 'REWARD_FAILED',
      message: expect.stringMatching(message),
    });
    const manager = createRewardManager('batch', fn as BatchRewardFunction, {
      timeoutMs: 50,
      onError: 'zero',
    });
    expect(await manager.score(samples)).toMatchObject({ failures: 3, extras: {} });
  });

  test('one score that is no number fails for its sample', async () => {
    const fn: BatchRewardFunction = () => [1, Number.NaN, 3];
    await expect(createRewardManager('batch', fn).score(samples)).rejects.toThrow(
      /got NaN for response 1 .*"bb"/,
    );
    const rewards = await createRewardManager('batch', fn, { onError: 'zero' }).score(samples);
    expect([...rewards.scores]).toEqual([1, 0, 3]);
    expect(rewards.failures).toBe(1);
  });
});

describe('dapo', () => {
  const overlong = { enable: true, len: 4, penaltyFactor: 0.5, log: true, maxRespLen: 10 };

  test.each([
    [5, 0],
    [6, 0],
    [7, -0.125],
    [10, -0.5],
    [12, -0.75],
  ])('%d tokens of 10 cost %d', (tokens, penalty) => {
    expect(overlongReward(tokens, overlong)).toBeCloseTo(penalty, 15);
  });

  test('has no part in gdpo, which is naive', async () => {
    const rewards = await createRewardManager('gdpo', () => ({ score: 1, format: 0 }), { overlong }).score([
      sample('x'),
    ]);
    expect([...rewards.scores]).toEqual([1]);
    expect(rewards.extras).toEqual({ score: [1], format: [0] });
  });

  test('penalises the score and leaves what the function returned', async () => {
    const long = [sample('x', { responseTokens: new Int32Array(8) }), sample('y')];
    const fn: RewardFunction = () => ({ score: 1, acc: true });
    const logged = await createRewardManager('dapo', fn, { overlong }).score(long);
    expect([...logged.scores]).toEqual([0.75, 1]);
    expect(logged.extras['acc']).toEqual([true, true]);
    expect(logged.extras['score']).toEqual([1, 1]);
    expect(logged.extras['overlong']).toEqual([true, false]);
    expect((logged.extras['overlong_reward'] as number[])[0]).toBe(-0.25);
    const silent = createRewardManager('dapo', fn, { overlong: { ...overlong, log: false } });
    expect(Object.keys((await silent.score(long)).extras)).toEqual(['score', 'acc']);
    const off = createRewardManager('dapo', fn, { overlong: { ...overlong, enable: false } });
    expect([...(await off.score(long)).scores]).toEqual([1, 1]);
  });

  test('refuses a buffer longer than the response', () => {
    expect(() => createRewardManager('dapo', () => 0, { overlong: { ...overlong, len: 11 } })).toThrow(
      /overlong_buffer_cfg\.len: expected at most reward\.reward_kwargs\.max_resp_len \(10\), got 11/,
    );
  });
});

/** Time passes only by sleeping. */
function fakeClock(): Clock & { waits: number[] } {
  let time = 0;
  const waits: number[] = [];
  return {
    waits,
    now: () => time,
    sleep: async (milliseconds) => {
      waits.push(milliseconds);
      time += milliseconds;
    },
  };
}

describe('rate_limited', () => {
  const limits = (more: Partial<RateLimits>): RateLimits => ({
    maxConcurrent: 1,
    maxRpm: null,
    maxTpm: null,
    estimatedTokensPerRequest: 2000,
    ...more,
  });

  test('spaces requests evenly', async () => {
    const clock = fakeClock();
    const times: number[] = [];
    const fn: RewardFunction = async () => times.push(clock.now());
    const manager = createRewardManager('rate_limited', fn, { limits: limits({ maxRpm: 60, clock }) });
    await manager.score(samples);
    await manager.score(samples);
    expect(times).toEqual([0, 1000, 2000, 3000, 4000, 5000]);
  });

  test('counts tokens, and lets a request larger than the bucket through after its time', async () => {
    const clock = fakeClock();
    const manager = createRewardManager('rate_limited', async () => 1, {
      limits: limits({ maxTpm: 60_000, clock }),
    });
    await manager.score(samples);
    expect(clock.waits).toEqual([1000, 2000, 2000]);
  });

  test('a bucket fills up to one second and no more', async () => {
    const clock = fakeClock();
    const bucket = new TokenBucket(600, clock);
    await clock.sleep(60_000);
    for (let i = 0; i < 11; i++) await bucket.acquire(1);
    expect(clock.waits).toEqual([60_000, 100]);
  });

  test('holds back all but max_concurrent, keeps the order, scores failures 0', async () => {
    let [active, most] = [0, 0];
    const fn: RewardFunction = async ({ response }) => {
      most = Math.max(most, ++active);
      await new Promise((done) => setTimeout(done, 20));
      active--;
      if (response === 'bb') throw new Error('503');
      return response.length;
    };
    const manager = createRewardManager('rate_limited', fn, { limits: limits({ maxConcurrent: 2 }) });
    const [rewards, others] = await Promise.all([manager.score(samples), manager.score(samples)]);
    expect(most).toBe(2);
    for (const { scores, failures } of [rewards, others])
      expect({ scores: [...scores], failures }).toEqual({ scores: [1, 0, 3], failures: 1 });
    const strict = createRewardManager('rate_limited', fn, { onError: 'fail' });
    await expect(strict.score(samples)).rejects.toThrow(
      /failed \(503, at .*managers\.test\.ts:\d+\) for response 1/,
    );
  });
});

test('prime refuses a function that it cannot run elsewhere', () => {
  expect(() => createRewardManager('prime', () => 0)).toThrow(
    /processes of their own.*custom_reward_function\.path/,
  );
});
