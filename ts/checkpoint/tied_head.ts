// The head in the files of a model whose config.json says that it is the embedding.
import { withoutPrefix } from '../model/tensor_names';
import type { StoredTensor } from './safetensors';
import { StoredBytes } from './stored_bytes';

export const LM_HEAD = 'lm_head.weight';
const CHUNK_BYTES = 8 * 2 ** 20;

/**
 * What is to be loaded where embedding and head are one. transformers 5 ties what the files allow: with one of the two it is both, and
 * where they have both and these differ, the head is a matrix of its own (`own`), whatever config.json says.
 */
export function tiedTensors(
  stored: ReadonlyMap<string, StoredTensor>,
  embeddingName: string,
): { stored: ReadonlyMap<string, StoredTensor>; own: boolean } {
  const head = stored.get(LM_HEAD);
  if (head === undefined) return { stored, own: false };
  const embedding = stored.get(embeddingName) ?? stored.get(withoutPrefix(embeddingName));
  if (embedding !== undefined) return { stored, own: !sameTensor(embedding, head) };
  return { stored: new Map(stored).set(embeddingName, head), own: false };
}

/** Packed ones: with the same scales. */
function sameTensor(a: StoredTensor, b: StoredTensor): boolean {
  if (!sameBytes(a, b)) return false;
  const [first, second] = [a.packing, b.packing];
  if (first === undefined || second === undefined) return first === second;
  return first.block.join() === second.block.join() && sameBytes(first.scales, second.scales);
}

function sameBytes(a: StoredTensor, b: StoredTensor): boolean {
  if (a.dtype !== b.dtype || a.shape.join() !== b.shape.join()) return false;
  const files = [new StoredBytes(a), new StoredBytes(b)] as const;
  try {
    const buffers = [Buffer.alloc(CHUNK_BYTES), Buffer.alloc(CHUNK_BYTES)] as const;
    for (let done = 0; done < a.bytes; done += CHUNK_BYTES) {
      const size = Math.min(CHUNK_BYTES, a.bytes - done);
      const [left, right] = [buffers[0].subarray(0, size), buffers[1].subarray(0, size)];
      files[0].read(left, done);
      files[1].read(right, done);
      if (!left.equals(right)) return false;
    }
    return true;
  } finally {
    for (const file of files) file.close();
  }
}
