import path from 'node:path';
import type { EngineOptions } from '../../ts/actor/engine_options';
import { Batch } from '../../ts/batch/batch';
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
