import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { policyLoss } from '../../ts/actor/loss_probe';
import { PROPORTIONAL_LOSSES } from '../../ts/algorithms/policy_losses/registry';
import { Batch } from '../../ts/batch/batch';
import { WorkerGroup } from '../../ts/controller/worker_group';
import { CONFORMANCE } from '../helpers/conformance';
import { maxDifference } from '../helpers/safetensors';

// The invariants that make results trustworthy: equality, not closeness.
const model = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
const VOCABULARY = 160;
let group: WorkerGroup;
beforeAll(async () => {
  group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
});
afterAll(() => group.close());

/** A small repeatable generator, so that a failure can be replayed. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

function raggedBatch(size: number, seed: number): Batch {
  const next = random(seed);
  const tokens = (n: number) => Array.from({ length: n }, () => 1 + Math.floor(next() * (VOCABULARY - 1)));
  const prompts = Array.from({ length: size }, () => tokens(1 + Math.floor(next() * 20)));
  const responses = Array.from({ length: size }, () => tokens(1 + Math.floor(next() * 40)));
  return Batch.fromSequences(prompts, responses);
}

async function withActor<T>(
  capacity: number,
  body: (actor: Actor) => Promise<T>,
  optim: { lr: number } | null = null,
  dtype: 'float32' | 'bfloat16' = 'float32',
): Promise<T> {
  const actor = await Actor.create({ model, group, maxTokensPerMicroBatch: capacity, optim, dtype });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

const perSequence = (batch: Batch, values: Float32Array): Float32Array[] =>
  Array.from({ length: batch.size }, (_, i) =>
    values.slice(batch.responseOffsets[i] as number, batch.responseOffsets[i + 1] as number),
  );

test('log-probs and entropy are bitwise independent of order, packing and neighbours', async () => {
  const batch = raggedBatch(40, 1);
  const order = Array.from({ length: 40 }, (_, i) => (i * 17) % 40);
  for (const capacity of [4096, 61]) {
    await withActor(capacity, async (actor) => {
      const straight = await actor.computeLogProb(batch, { entropy: true });
      const reordered = await actor.computeLogProb(batch.reorder(order), { entropy: true });
      const alone = await actor.computeLogProb(batch.slice(7, 8), { entropy: true });
      for (const key of ['logProbs', 'entropy'] as const) {
        const expected = perSequence(batch, straight[key] as Float32Array);
        const actual = perSequence(batch.reorder(order), reordered[key] as Float32Array);
        for (const [to, from] of order.entries()) expect(actual[to]).toEqual(expected[from]);
        expect(alone[key]).toEqual(expected[7]);
      }
    });
  }
});

test('the capacity does not matter either', async () => {
  const batch = raggedBatch(40, 2);
  const run = (capacity: number) =>
    withActor(capacity, (actor) => actor.computeLogProb(batch, { entropy: true }));
  expect(await run(61)).toEqual(await run(4096));
});

test.each(['float32', 'bfloat16'] as const)(
  'before the first update the policy ratio is exactly 1 in %s',
  async (dtype) => {
    const plain = raggedBatch(24, 3);
    const next = random(4);
    await withActor(
      300,
      async (actor) => {
        const { logProbs } = await actor.computeLogProb(plain, { temperature: 0.9 });
        const advantages = Float32Array.from({ length: plain.numResponseTokens }, () => next() - 0.5);
        const batch = plain.with({ oldLogProbs: logProbs, advantages });
        const metrics = await actor.updatePolicy(batch, { temperature: 0.9 });
        expect(metrics['actor/ppo_kl']).toBe(0);
        expect(metrics['actor/pg_clipfrac']).toBe(0);
        expect(metrics['actor/pg_clipfrac_lower']).toBe(0);
        expect(metrics['actor/grad_norm']).toBeGreaterThan(0);
      },
      { lr: 1e-3 },
      dtype,
    );
  },
);

test('bfloat16 log-probs stay near float32, and a rollout near its log-probs', async () => {
  const batch = raggedBatch(24, 7);
  const run = (dtype: 'float32' | 'bfloat16') =>
    withActor(
      4096,
      async (actor) => {
        const { logProbs } = await actor.computeLogProb(batch);
        const prompts = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
        const rollout = await actor.generate(prompts, { maxNewTokens: 12, n: 2, seed: 3, stopTokenIds: [] });
        const again = await actor.computeLogProb(rollout);
        return {
          logProbs,
          rolloutError: maxDifference(again.logProbs, rollout.get('rolloutLogProbs') as Float32Array),
        };
      },
      null,
      dtype,
    );
  const full = await run('float32');
  const half = await run('bfloat16');
  const mean =
    full.logProbs.reduce((sum, v, i) => sum + Math.abs(v - (half.logProbs[i] as number)), 0) /
    full.logProbs.length;
  expect(mean).toBeLessThan(0.1);
  expect(full.rolloutError).toBeLessThan(1e-5);
  expect(half.rolloutError).toBeLessThan(0.3);
});

test.each(['float32', 'bfloat16'] as const)(
  'a sample does not depend on what else is generated, nor on the number of threads: %s',
  async (dtype) => {
    const source = raggedBatch(45, 8);
    const prompts = Array.from({ length: source.size }, (_, i) => source.prompt(i));
    const samples = async (numThreads: number, chosen: number[]) => {
      const actor = await Actor.create({ model, optim: null, dtype, numThreads });
      try {
        const options = { maxNewTokens: 9, seed: 4, temperature: 0.8, stopTokenIds: [5] };
        const out = await actor.generate(
          chosen.map((i) => prompts[i] as Int32Array),
          options,
        );
        const logProbs = out.get('rolloutLogProbs');
        return chosen.map((_, k) => ({
          response: [...out.response(k)],
          logProbs: [...logProbs.subarray(out.responseOffsets[k], out.responseOffsets[k + 1])],
        }));
      } finally {
        await actor.close();
      }
    };
    const all = await samples(
      2,
      prompts.map((_, i) => i),
    );
    for (const [threads, chosen] of [
      [2, [44, 3, 17]],
      [1, [3]],
      [1, prompts.map((_, i) => i)],
    ] as const) {
      const some = await samples(threads, [...chosen]);
      for (const [k, i] of chosen.entries()) expect(some[k]).toEqual(all[i]);
    }
  },
);

test('updates agree to 1e-6 for 1, 2 and 7 micro-batches', async () => {
  const plain = raggedBatch(28, 5);
  const next = random(6);
  const batch = plain.with({
    oldLogProbs: Float32Array.from({ length: plain.numResponseTokens }, () => -5 + next()),
    refLogProbs: Float32Array.from({ length: plain.numResponseTokens }, () => -5 + next()),
    advantages: Float32Array.from({ length: plain.numResponseTokens }, () => 2 * next() - 1),
  });
  const total = plain.numTokens;
  const results = [];
  for (const capacity of [total, Math.ceil(total * 0.6), Math.ceil(total / 6.4)]) {
    results.push(
      await withActor(
        capacity,
        async (actor) => {
          const metrics = await actor.updatePolicy(batch, {
            loss: {
              entropyCoeff: 0.01,
              useKlLoss: true,
              klLossCoef: 0.1,
              aggregation: 'seq-mean-token-mean',
            },
          });
          // The gradient, not the weights: AdamW's first step keeps only its sign.
          const [gradient] = await group.callAll(actor.name, 'getTensor', () => [
            'grad',
            'layers.0.mlp.in.weight',
          ]);
          const { logProbs } = await actor.computeLogProb(plain);
          return { metrics, gradient: gradient as Float32Array, logProbs };
        },
        { lr: 1e-5 },
      ),
    );
  }
  const [one, ...others] = results;
  for (const other of others) {
    for (const key of [
      'actor/pg_loss',
      'actor/kl_loss',
      'actor/entropy_loss',
      'actor/grad_norm',
      'actor/loss',
    ]) {
      const expected = one?.metrics[key] as number;
      expect(Math.abs((other.metrics[key] as number) - expected)).toBeLessThanOrEqual(
        1e-6 * Math.max(1, Math.abs(expected)),
      );
    }
    expect(maxDifference(other.gradient, one?.gradient as Float32Array)).toBeLessThan(1e-6);
    expect(maxDifference(other.logProbs, one?.logProbs as Float32Array)).toBeLessThan(1e-4);
  }
});

describe('sequences without a gradient', () => {
  // Every second sequence has advantages of zero.
  function mixedBatch(): Batch {
    const batch = raggedBatch(12, 5);
    const next = random(6);
    const column = (value: (i: number) => number): Float32Array =>
      Float32Array.from(
        Array.from(batch.responseLens).flatMap((length, i) => Array.from({ length }, () => value(i))),
      );
    const counts = Uint8Array.from({ length: batch.numResponseTokens }, () => (next() < 0.8 ? 1 : 0));
    return batch.withResponseMask(counts).with({
      oldLogProbs: column(() => -5 + next()),
      advantages: column((i) => (i % 2) * (next() - 0.5)),
    });
  }

  test.each([...PROPORTIONAL_LOSSES])('%s gives them none', async (mode) => {
    const batch = mixedBatch();
    const { gradLogProbs } = await policyLoss(
      mode,
      {
        offsets: batch.responseOffsets,
        responseMask: batch.get('responseMask'),
        logProbs: batch.get('oldLogProbs').map((x, t) => x + Math.sin(t)),
        oldLogProbs: batch.get('oldLogProbs'),
        advantages: batch.get('advantages'),
        rolloutIsWeights: batch.get('advantages').map((_, t) => 1 + 0.5 * Math.cos(t)),
      },
      {},
      group,
    );
    const largest = perSequence(batch, gradLogProbs).map((row) =>
      row.reduce((m, x) => Math.max(m, Math.abs(x)), 0),
    );
    expect(largest.filter((_, i) => i % 2 === 0)).toEqual([0, 0, 0, 0, 0, 0]);
    expect(Math.max(...largest)).toBeGreaterThan(0);
  });

  test('what an update does is the same, with and without their backward pass', async () => {
    const batch = mixedBatch();
    const zeros = batch.get('advantages').map(() => 0);
    const norms: number[] = [];
    for (const loss of [{}, { useKlLoss: true, klLossCoef: 1e-30 }]) {
      await withActor(
        61,
        async (actor) => {
          const metrics = await actor.updatePolicy(batch.with({ refLogProbs: batch.get('oldLogProbs') }), {
            loss,
          });
          expect(metrics['actor/no_gradient_ratio']).toBe(norms.length === 0 ? 0.5 : 0);
          norms.push(metrics['actor/grad_norm'] as number);
          const still = await actor.updatePolicy(batch.drop('advantages').with({ advantages: zeros }), {
            miniBatchSize: 6,
          });
          expect(still).toMatchObject({ 'actor/grad_norm': 0, 'actor/no_gradient_ratio': 1 });
        },
        { lr: 1e-3 },
      );
    }
    expect(Math.abs((norms[0] as number) / (norms[1] as number) - 1)).toBeLessThan(1e-6);
  });
});
