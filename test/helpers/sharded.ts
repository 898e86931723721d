import path from 'node:path';
import { Actor } from '../../ts/actor/actor';
import { Batch } from '../../ts/batch/batch';
import type { UpdateMetrics } from '../../ts/engine/engine_metrics';
import type { EngineOptions } from '../../ts/engine/engine_options';
import { CONFORMANCE } from './conformance';

// What tests of several workers compute: a small model and batches for it.

export const SHARDED_MODEL = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'actor');
export const SHARDED_CRITIC = path.join(CONFORMANCE, 'models', 'qwen3_headdim', 'critic');
const VOCABULARY = 160;

export const smallEngine: Partial<EngineOptions> = {
  maxTokensPerMicroBatch: 64,
  numThreads: 1,
  optim: { lr: 1e-4 },
};

/** A small actor for the time of `body`. */
export async function withActor<T>(
  o: Partial<EngineOptions>,
  body: (actor: Actor) => Promise<T>,
): Promise<T> {
  const actor = await Actor.create({ ...smallEngine, model: SHARDED_MODEL, ...o });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

/** A small repeatable generator, so that a failure can be replayed. */
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** `size` sequences of 2 to 16 tokens, the first one of 40 and more, with the columns of every update. */
export function raggedBatch(size: number, seed: number, vocabulary = VOCABULARY): Batch {
  const next = random(seed);
  const tokens = (n: number) => Array.from({ length: n }, () => 1 + Math.floor(next() * (vocabulary - 1)));
  const prompts = Array.from({ length: size }, () => tokens(1 + Math.floor(next() * 6)));
  const responses = Array.from({ length: size }, (_, i) =>
    tokens(i === 0 ? 40 : 1 + Math.floor(next() * 10)),
  );
  const mask = responses.flatMap((ids) => ids.map(() => (next() < 0.8 ? 1 : 0)));
  const batch = Batch.fromSequences(prompts, responses, { responseMask: mask });
  const column = (low: number, high: number) =>
    Float32Array.from({ length: batch.numResponseTokens }, () => low + (high - low) * next());
  return batch.with({
    oldLogProbs: column(-5.3, -4.8),
    refLogProbs: column(-5.3, -4.8),
    advantages: column(-1, 1),
    values: column(-0.3, 0.3),
    returns: column(-1, 1),
  });
}

/**
 * All within 1e-6, but the gradient's norm: after some updates one process with another capacity, which sums in another order,
 * moves it by up to 3e-6 on this model, too. `done`: updates before the first of these.
 */
export function expectSameMetrics(actual: UpdateMetrics[], expected: UpdateMetrics[], done = 0): void {
  for (const [step, record] of expected.entries()) {
    for (const [name, value] of Object.entries(record)) {
      if (name.startsWith('perf/')) continue;
      const error = Math.abs((actual[step]?.[name] as number) - value) / Math.max(1, Math.abs(value));
      const tolerance = name.endsWith('grad_norm') && done + step > 0 ? 5e-6 : 1e-6;
      if (!(error <= tolerance))
        throw new Error(`update ${step}, ${name}: ${actual[step]?.[name]} but ${value}`);
    }
  }
  expect(actual).toHaveLength(expected.length);
}

/** Norm of the difference over that of what is expected. */
export function relative(actual: Float32Array, expected: Float32Array): number {
  let difference = 0;
  let norm = 0;
  for (const [i, value] of expected.entries()) {
    difference += ((actual[i] as number) - value) ** 2;
    norm += value ** 2;
  }
  return Math.sqrt(difference / norm);
}
