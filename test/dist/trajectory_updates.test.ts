import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { Critic } from '../../ts/critic/critic';
import { miniBatchSizes } from '../../ts/trainer/mini_batch_sizes';
import { CONFORMANCE } from '../helpers/conformance';

// Mini-batches of trajectories, one of which has become two sequences.

const model = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
const optim = { lr: 1e-3, schedule: 'cosine', totalSteps: 8, warmupSteps: 2 } as const;
let group: WorkerGroup;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
});
afterAll(() => group.close());

/** A response of each length; `trajectory`: what each belongs to. */
function batchOf(lengths: readonly number[], trajectory: readonly number[]): Batch {
  const tokens = (i: number, n: number) => Array.from({ length: n }, (_, t) => 1 + ((31 * i + 17 * t) % 150));
  const batch = Batch.fromSequences(
    lengths.map((_, i) => tokens(i, 3)),
    lengths.map((length, i) => tokens(i + 50, length)),
  );
  const wave = (scale: number, at: number) =>
    Float32Array.from({ length: batch.numResponseTokens }, (_, t) => at + scale * Math.sin(1.7 * t + 1));
  return batch.with(
    {
      oldLogProbs: wave(0.5, -5),
      advantages: wave(1, 0),
      values: wave(0.2, 0),
      returns: wave(1, 0.5),
      trajectory: Int32Array.from(trajectory),
    },
    { granularity: { trajectory: 'sequence' } },
  );
}

const plain = batchOf([4, 6, 5, 9], [0, 1, 2, 3]);
/** The longest response is in the last mini-batch. */
const split = batchOf([4, 6, 5, 3, 9], [0, 1, 2, 2, 3]);

/** Mini-batches of one trajectory each. */
const roles = {
  actor: {
    create: () => Actor.create({ model, group, maxTokensPerMicroBatch: 64, optim }),
    update: (engine: Actor, batch: Batch, scaleFactor?: number) =>
      engine.updatePolicy(batch, {
        miniBatchSize: miniBatchSizes(batch, 1),
        loss: { aggregation: 'seq-mean-token-sum-norm', ...(scaleFactor ? { scaleFactor } : {}) },
      }),
  },
  critic: {
    create: () => Critic.create({ model, group, maxTokensPerMicroBatch: 64, optim, seed: 3 }),
    update: (engine: Critic, batch: Batch, scaleFactor?: number) =>
      engine.updateCritic(batch, {
        miniBatchSize: miniBatchSizes(batch, 1),
        aggregation: 'seq-mean-token-sum-norm',
        ...(scaleFactor ? { scaleFactor } : {}),
      }),
  },
};

describe.each(['actor', 'critic'] as const)('%s', (role) => {
  const { create, update } = roles[role] as unknown as {
    create(): Promise<Actor & Critic>;
    update(engine: Actor & Critic, batch: Batch, scaleFactor?: number): Promise<Record<string, number>>;
  };

  async function withEngine<T>(body: (engine: Actor & Critic) => Promise<T>): Promise<T> {
    const engine = await create();
    try {
      return await body(engine);
    } finally {
      await engine.close();
    }
  }

  test('the learning-rate schedule moves once per step, whatever has become of the trajectories', async () => {
    const rates = (batches: readonly Batch[]) =>
      withEngine(async (engine) => {
        const all = [];
        for (const batch of batches) all.push((await update(engine, batch))[`${role}/lr`] as number);
        return { rates: all, steps: await engine.optimizerSteps() };
      });
    const expected = await rates([plain, plain, plain, plain, plain]);
    expect(new Set(expected.rates).size).toBe(5);
    expect(expected.steps).toBe(20);
    expect(await rates([split, plain, split, split, plain])).toEqual(expected);
  });

  test('losses are divided by the longest response of the step, not by that of each mini-batch', async () => {
    const numbers = (scaleFactor?: number) =>
      withEngine(async (engine) => {
        const metrics = [];
        for (let step = 0; step < 2; step++) metrics.push(await update(engine, split, scaleFactor));
        return metrics.map((all) =>
          Object.fromEntries(Object.entries(all).filter(([name]) => !name.startsWith('perf/'))),
        );
      });
    expect(await numbers()).toEqual(await numbers(9));
  });

  test('updates that were left out are counted', async () => {
    const advantages = split.get('advantages').slice();
    const returns = split.get('returns').slice();
    const oldLogProbs = split.get('oldLogProbs').slice();
    // The gradient of the first trajectory overflows with the divisor below, and no clipping takes it away.
    for (const column of [advantages, returns]) column.fill(1e38, 0, 4);
    oldLogProbs.fill(0, 0, 4);
    const spoilt = split
      .drop(['advantages', 'returns', 'oldLogProbs'])
      .with({ advantages, returns, oldLogProbs });
    const metrics = await withEngine((engine) => update(engine, spoilt, 1e-6));
    expect(metrics[`${role}/update_skipped`]).toBe(1);
  });
});
