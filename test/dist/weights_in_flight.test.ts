import { setImmediate } from 'node:timers/promises';
import { Actor } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import type { RolloutResult } from '../../ts/rollout/request';
import { promptsBatch } from '../../ts/rollout/sampling';
import type { WeightBucket } from '../../ts/weights/weight_bucket';
import { raggedBatch, SHARDED_MODEL, smallEngine } from '../helpers/sharded';

// A request that is under way while an import replaces the weights bucket by bucket.

const NEW_TOKENS = 100;
/** The import begins when so many tokens have come. */
const BEGINS = 10;

let actor: Actor;
let old: WeightBucket[];
let fresh: WeightBucket[];
beforeAll(async () => {
  actor = await Actor.create({ ...smallEngine, optim: { lr: 1e-2 }, model: SHARDED_MODEL });
  old = await buckets();
  await actor.updatePolicy(raggedBatch(8, 6));
  fresh = await buckets();
});
beforeEach(async () => {
  await actor.importWeights(old);
});
afterAll(() => actor.close());

async function buckets(): Promise<WeightBucket[]> {
  const all: WeightBucket[] = [];
  for await (const bucket of actor.exportWeights({ bucketBytes: 20_000 })) all.push(bucket);
  return all;
}

/** `next` is called before every token with the number of those that have come, and waited for. */
function generate(next: (made: number) => Promise<unknown> | null): Promise<RolloutResult> {
  let made = 0;
  const constraint = { next: async () => next(made++)?.then(() => null) ?? null };
  const sampling = { maxNewTokens: NEW_TOKENS, seed: 3n, stopTokenIds: [], constraint };
  return actor.rollout.submit({ promptIds: [5, 9, 2], sampling }).result;
}

/** While the import goes on the request does so, too, if it can; `made`: the tokens that have come. */
function generateDuring(source: (made: () => number) => AsyncIterable<WeightBucket>) {
  let count = 0;
  let result: Promise<RolloutResult> | null = null;
  const imported = new Promise((resolve, reject) => {
    result = generate((made) => {
      count = made;
      if (made === BEGINS) actor.importWeights(source(() => count)).then(resolve, reject);
      return null;
    });
  });
  return { imported, result: result as unknown as Promise<RolloutResult> };
}

/** Until the worker has answered to all that it was given. */
async function answered(): Promise<void> {
  for (let i = 0; i < 3; i++) await actor.engine.group.callRank(0, actor.name, 'stateBytes', []);
}

test('no token is made between two buckets, and from the last one on they are of the new weights', async () => {
  const counts: number[] = [];
  const { imported, result } = generateDuring(async function* (made) {
    for (const bucket of fresh) {
      yield bucket;
      await answered();
      counts.push(made());
    }
  });
  await imported;
  const { tokens, logProbs } = await result;
  expect(counts.length).toBeGreaterThan(3);
  expect(new Set(counts).size).toBe(1);
  const [at] = counts as [number];
  expect(at).toBeGreaterThanOrEqual(BEGINS);

  // The same request, which is held while all the weights are replaced in one go.
  await actor.importWeights(old);
  const held = await generate((made) => (made === at ? actor.importWeights(fresh) : null));
  expect([...tokens]).toEqual([...held.tokens]);
  expect([...logProbs]).toEqual([...held.logProbs]);
  await actor.importWeights(old);
  const unchanged = await generate(() => null);
  expect([...logProbs.subarray(0, at)]).toEqual([...unchanged.logProbs.subarray(0, at)]);
  expect(logProbs[at]).not.toBe(unchanged.logProbs[at]);
});

test('what is asked for while the rollout takes new weights begins with them', async () => {
  const prompt = promptsBatch('test', [[5, 9, 2]], 1);
  const batch = {
    prompts: prompt,
    n: 1,
    sampling: { maxNewTokens: 8, stopTokenIds: [] },
    seeds: new BigUint64Array([7n]),
  };
  const asked: Promise<unknown>[] = [];
  const source = async function* (): AsyncGenerator<WeightBucket> {
    for (const bucket of fresh) {
      yield bucket;
      if (asked.length === 0)
        asked.push(
          generate(() => null),
          actor.rollout.submitBatch!(batch),
        );
    }
  };
  await actor.rollout.updateWeights({ kind: 'buckets', buckets: source() }, 4);
  const [single, many] = (await Promise.all(asked)) as [RolloutResult, Batch];
  expect(single.versions).toEqual([{ version: 4, start: 0, end: NEW_TOKENS }]);
  const after = await generate(() => null);
  expect([...single.logProbs]).toEqual([...after.logProbs]);
  expect([...many.response(0)]).toEqual([...(await actor.rollout.submitBatch!(batch)).response(0)]);
});

test('an import that fails half way fails the requests under way as it refuses new ones', async () => {
  const { imported, result } = generateDuring(async function* () {
    yield fresh[0] as WeightBucket;
    await answered();
    throw new Error('the network is down');
  });
  const failed = expect(result).rejects.toMatchObject({
    code: 'INVALID_MODEL',
    message: expect.stringContaining('they are neither the old ones nor the new'),
  });
  await expect(imported).rejects.toThrow(/the network is down; a part of the weights had been replaced/);
  await failed;
  expect(() => generate(() => null)).toThrow(/neither the old ones nor the new/);
  await actor.importWeights(fresh);
  expect((await generate(() => null)).tokens).toHaveLength(NEW_TOKENS);
});

test('an import that fails before anything has changed leaves requests as they are', async () => {
  const unchanged = await generate(() => null);
  const { imported, result } = generateDuring(async function* () {
    yield { parts: [], bytes: 0 };
    throw new Error('the network is down');
  });
  await expect(imported).rejects.toThrow(/^the network is down$/);
  expect([...(await result).logProbs]).toEqual([...unchanged.logProbs]);
});

/** A source that gives one bucket and then nothing until it is released. */
function stalling(): { source: () => AsyncIterable<WeightBucket>; stalls: Promise<void>; release(): void } {
  let [release, stall] = [(): void => {}, (): void => {}];
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const stalls = new Promise<void>((resolve) => {
    stall = resolve;
  });
  const source = async function* (): AsyncGenerator<WeightBucket> {
    yield fresh[0] as WeightBucket;
    await answered();
    stall();
    await released;
    throw new Error('the network is down');
  };
  return { source, stalls, release };
}

test('an import that comes to no end keeps nobody from giving requests up', async () => {
  const { source, stalls, release } = stalling();
  const { imported, result } = generateDuring(source);
  const failed = expect(imported).rejects.toThrow(/the network is down/);
  await stalls;
  await actor.rollout.pause('abort');
  const { finishReason, tokens } = await result;
  expect(finishReason).toBe('abort');
  expect(tokens.length).toBeGreaterThanOrEqual(BEGINS);
  release();
  await failed;
  await actor.importWeights(fresh);
  await actor.rollout.resume();
  expect((await generate(() => null)).tokens).toHaveLength(NEW_TOKENS);
}, 30_000);

test('a batch that gives its memory up for an update goes on after it, and has the version of each token', async () => {
  const { rollout } = actor;
  // So many that they take a few turns.
  const ids = Array.from({ length: 128 }, (_, i) => [5 + (i % 7), 9, 2 + (i % 5)]);
  const prompts = promptsBatch('test', ids, 2);
  const sampling = { maxNewTokens: NEW_TOKENS, stopTokenIds: [] };
  const request = {
    prompts,
    n: 2,
    sampling,
    seeds: BigUint64Array.from(ids.flatMap((_, i) => [2n * BigInt(i), 2n * BigInt(i) + 1n])),
    versions: true,
  };
  const run = async (mode: 'keep' | 'preempt' | null) => {
    await rollout.updateWeights({ kind: 'in-place' }, 1);
    const before = (await rollout.stats()).generatedTokens;
    const batch = rollout.submitBatch?.(request) as Promise<Batch>;
    if (mode === null) return batch;
    // The batch is silent until its end.
    while ((await rollout.stats()).generatedTokens === before) await setImmediate();
    await rollout.pause(mode);
    await rollout.updateWeights({ kind: 'in-place' }, 2);
    await rollout.resume();
    return batch;
  };
  const whole = await run(null);
  expect(new Set(whole.get('version') as Int32Array)).toEqual(new Set([1]));
  for (const mode of ['keep', 'preempt'] as const) {
    // On a busy machine a pause may come when the batch has ended, or between two of its turns.
    let within = false;
    for (let tries = 0; tries < 20 && !within; tries++) {
      const batch = await run(mode);
      // The weights were the same before and after.
      for (const name of ['tokens', 'rolloutLogProbs'] as const)
        expect(batch.get(name)).toEqual(whole.get(name));
      const rows = Array.from({ length: batch.size }, (_, i) => batch.row('version', i) as Int32Array);
      for (const versions of rows) expect(versions).toEqual(Int32Array.from(versions).sort());
      within = rows.some((versions) => versions[0] === 1 && versions.at(-1) === 2);
    }
    expect(within).toBe(true);
  }
}, 60_000);

test('an actor that is closed while an import comes to no end fails the requests under way', async () => {
  const { source, stalls, release } = stalling();
  const { imported, result } = generateDuring(source);
  const failed = [
    expect(result).rejects.toMatchObject({ code: 'CLOSED' }),
    expect(imported).rejects.toThrow(/the network is down/),
  ];
  await stalls;
  await actor.close();
  await failed[0];
  release();
  await failed[1];
}, 30_000);
