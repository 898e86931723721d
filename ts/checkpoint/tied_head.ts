// The head in the files of a model whose config.json says that it is the embedding.
import { closeSync, openSync, readSync } from 'node:fs';
import { TroupeError } from '../errors';
import { withoutPrefix } from '../model/tensor_names';
import type { StoredTensor } from './safetensors';

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

function sameTensor(a: StoredTensor, b: StoredTensor): boolean {
  if (a.dtype !== b.dtype || a.shape.join() !== b.shape.join()) return false;
  const [first, second] = [openSync(a.file, 'r'), openSync(b.file, 'r')];
  try {
    const buffers = [Buffer.alloc(CHUNK_BYTES), Buffer.alloc(CHUNK_BYTES)] as const;
    for (let done = 0; done < a.bytes; done += CHUNK_BYTES) {
      const size = Math.min(CHUNK_BYTES, a.bytes - done);
      const left = readWhole(first, buffers[0].subarray(0, size), a.offset + done, a.file);
      const right = readWhole(second, buffers[1].subarray(0, size), b.offset + done, b.file);
      if (!left.equals(right)) return false;
    }
    return true;
  } finally {
    closeSync(first);
    closeSync(second);
  }
}

function readWhole(fd: number, into: Buffer, at: number, file: string): Buffer {
  for (let done = 0; done < into.length; ) {
    const read = readSync(fd, into, done, into.length - done, at + done);
    if (read === 0) throw new TroupeError('IO', `[safetensors] ${file} ended while it was read`);
    done += read;
  }
  return into;
}
