// Which sequences of an update are propagated backwards is reckoned twice: by the core, and by what cuts a batch over ranks.
import { deriveSeed } from '../../ts/base/seed';
import { Batch } from '../../ts/batch/batch';
import { firstWithPrompt } from '../../ts/batch/prompts';
import { propagated, tokenBatch } from '../../ts/engine/shards';
import type { NativeEngine } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';
import { tinyEngine, tinyOptim, tinyPolicyLoss } from '../helpers/tiny_model';

const binding = loadBinding();
let engine: NativeEngine;
beforeAll(async () => {
  // Every update is of the same weights.
  engine = await binding.createEngine(tinyEngine({ optim: { ...tinyOptim, lr: 0 } }));
});
afterAll(() => binding.close(engine));

const MINI_BATCHES = 2;

interface Case {
  batch: Batch;
  hasGradient: Uint8Array;
  /** Sequences of the mini-batches. */
  parts: number[][];
}

/** Prompts of 1 to 12 tokens in any order, some alike, with responses of 0 to 6. */
function drawn(seed: number): Case {
  let draws = 0;
  const random = (): number => deriveSeed(seed, draws++) / 2 ** 53;
  const below = (n: number): number => Math.floor(random() * n);
  const prompts = Array.from({ length: 4 }, () => Array.from({ length: 1 + below(12) }, () => below(16)));
  const size = MINI_BATCHES * (4 + below(5));
  const sequences = Array.from({ length: size }, () => prompts[below(prompts.length)] as number[]);
  const batch = Batch.fromSequences(
    sequences,
    sequences.map(() => Array.from({ length: below(7) }, () => below(16))),
  );
  const share = random();
  const half = size / MINI_BATCHES;
  return {
    batch,
    hasGradient: Uint8Array.from({ length: size }, () => (random() < share ? 1 : 0)),
    parts: Array.from({ length: MINI_BATCHES }, (_, m) =>
      Array.from({ length: half }, (_, i) => m * half + i),
    ),
  };
}

/** Norm of the gradient of each mini-batch. `learnt`: sequences with advantages, others have 0; null: all. `hasGradient`: what the core is told. */
async function gradients(
  { batch, parts }: Case,
  learnt: Uint8Array | null,
  hasGradient: Uint8Array | null,
): Promise<number[]> {
  const { numResponseTokens: length, responseOffsets } = batch;
  const advantages = new Float32Array(length);
  for (let i = 0; i < batch.size; i++)
    if (learnt?.[i] !== 0)
      advantages.fill(i % 3 === 0 ? -1 : 0.5 + i / 8, responseOffsets[i], responseOffsets[i + 1]);
  const metrics = await binding.updatePolicy(
    engine,
    {
      tokens: tokenBatch(batch),
      responseMask: new Uint8Array(length).fill(1),
      oldLogProbs: new Float32Array(length).fill(-Math.log(16)),
      advantages,
      refLogProbs: null,
      rolloutIsWeights: null,
      givenLoss: null,
      hasGradient,
      teacherLogProbs: null,
      teacherIds: null,
    },
    {
      offsets: [0, ...parts.map((part) => (part.at(-1) as number) + 1)],
      globalTokens: parts.map(() => 50),
      globalSequences: parts.map((part) => part.length),
      epochs: 1,
    },
    // Nothing is clipped.
    { ...tinyPolicyLoss, clipRatioLow: 0.99, clipRatioHigh: 10 },
    1,
  );
  return metrics.map((one) => one['grad_norm'] as number);
}

/** Sums of float32 in another order; one sequence more or less is more than that. */
const alike = (a: number, b: number): boolean => Math.abs(a - b) <= 1e-5 * Math.max(a, b);

test('both find the same sequences', async () => {
  let further = 0;
  for (let seed = 0; seed < 150; seed++) {
    const one = drawn(seed);
    const { batch, hasGradient, parts } = one;
    const prompts = firstWithPrompt(batch);
    const found = Uint8Array.from(
      parts.flatMap((part) => [...propagated(batch, part, prompts, hasGradient)]),
    );
    // All have advantages, whatever the core is told: it learns from those that it propagates.
    const taken = await gradients(one, null, hasGradient);
    const expected = await gradients(one, found, null);
    const told = await gradients(one, hasGradient, null);
    for (const [m, norm] of taken.entries()) {
      expect({ seed, m, alike: alike(norm, expected[m] as number) }).toEqual({ seed, m, alike: true });
      if (!alike(norm, told[m] as number)) further++;
    }
  }
  // Mini-batches in which more is propagated than has a gradient.
  expect(further).toBeGreaterThan(50);
});
