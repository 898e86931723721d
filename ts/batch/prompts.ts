// Which sequences of a batch answer the same prompt.
import type { Batch } from './batch';
import { sameImages } from './prompt_image';

/** [B] the first sequence with the same prompt, tokens and images: what the core goes by, too, when it computes a shared prompt once. */
export function firstWithPrompt(batch: Batch): Int32Array {
  const { seqOffsets, promptLens } = batch;
  const tokens = batch.get('tokens');
  const first = new Int32Array(batch.size);
  const byHash = new Map<number, number[]>();
  const images = batch.has('images') ? batch.get('images') : null;

  const same = (i: number, j: number): boolean => {
    const length = promptLens[i] as number;
    if (length !== promptLens[j]) return false;
    const [a, b] = [seqOffsets[i] as number, seqOffsets[j] as number];
    for (let t = 0; t < length; t++) if (tokens[a + t] !== tokens[b + t]) return false;
    return images === null || sameImages(images[i] ?? [], images[j] ?? []);
  };
  // FNV-1a over whole tokens, with a shift that brings high bits down.
  const hash = (i: number): number => {
    let h = 0x811c9dc5;
    const start = seqOffsets[i] as number;
    for (let t = start; t < start + (promptLens[i] as number); t++) {
      h = Math.imul(h ^ (tokens[t] as number), 0x01000193);
      h ^= h >>> 15;
    }
    return h;
  };

  for (let i = 0; i < batch.size; i++) {
    // Responses to one prompt mostly follow each other.
    if (i > 0 && same(i, i - 1)) {
      first[i] = first[i - 1] as number;
      continue;
    }
    const key = hash(i);
    const candidates = byHash.get(key);
    const found = candidates?.find((j) => same(i, j));
    first[i] = found ?? i;
    if (candidates === undefined) byHash.set(key, [i]);
    else if (found === undefined) candidates.push(i);
  }
  return first;
}
