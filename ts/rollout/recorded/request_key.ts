// What makes two requests the same.
import { createHash } from 'node:crypto';
import type { RolloutRequest } from '../request';

/**
 * Equal for requests that have the same answer from the same weights: prompt, images, grammar, and all of how tokens are chosen, the seed
 * too. null: nobody knows, since a function decides what may come.
 */
export function requestKey({ promptIds, sampling, images = [], grammar }: RolloutRequest): string | null {
  if (sampling.constraint !== undefined) return null;
  const { logitBias, seed, ...plain } = sampling;
  const chosen = {
    ...plain,
    ...(logitBias === undefined ? {} : { logitBias: [...logitBias].sort(([a], [b]) => a - b) }),
    ...(seed === undefined ? {} : { seed: `${seed}` }),
    ...(grammar === undefined ? {} : { grammar }),
    images: images.map(({ height, width }) => [height, width]),
    prompt: promptIds.length,
  };
  const sorted = Object.entries(chosen).sort(([a], [b]) => (a < b ? -1 : 1));
  const hash = createHash('sha256').update(JSON.stringify(sorted)).update(Int32Array.from(promptIds));
  for (const { pixels } of images) hash.update(pixels);
  return hash.digest('base64url');
}
