import { writeSync } from 'node:fs';
import { TroupeError } from '../errors';
import { convertFloats } from './float_bytes';
import { type FloatChunk, unpackedChunks } from './packed_chunks';
import { isPacked } from './packed_tensor';
import type { StoredTensor } from './safetensors';
import { StoredBytes } from './stored_bytes';
import { type FloatDtype, floatBytes } from './write_plan';

/** What is in memory at a time, of values that are not packed. */
const CHUNK_BYTES = 16 * 2 ** 20;

/**
 * Writes all values of a tensor from byte `offset` of an open file on, chunk by chunk, in `dtype`.
 * @throws TroupeError NON_FINITE naming a tensor that holds NaN or infinity, or a value that the dtype cannot hold; IO for a file that ends
 *   early. Errors of the file system come as they are.
 */
export function copyTensor(source: StoredTensor, out: number, offset: number, dtype: FloatDtype): void {
  let [done, at] = [0, offset];
  for (const { bytes: chunk, dtype: from } of isPacked(source) ? unpackedChunks(source) : chunksOf(source)) {
    const { bytes, bad } = convertFloats(chunk, from, dtype === 'F16' ? 'same' : dtype);
    if (bad !== null) throw badValue(source, done + bad.index, bad.overflow ? dtype : null);
    writeAll(out, bytes, at);
    done += chunk.length / floatBytes(from);
    at += bytes.length;
  }
}

/** Its bytes; a chunk is gone with the next. */
function* chunksOf(source: StoredTensor): Generator<FloatChunk> {
  const buffer = new Uint8Array(Math.min(CHUNK_BYTES, source.bytes));
  const file = new StoredBytes(source);
  try {
    for (let done = 0; done < source.bytes; done += buffer.length) {
      const chunk = buffer.subarray(0, Math.min(buffer.length, source.bytes - done));
      yield { bytes: file.read(chunk, done), dtype: source.dtype as FloatDtype };
    }
  } finally {
    file.close();
  }
}

function badValue({ name, file }: StoredTensor, index: number, dtype: FloatDtype | null): TroupeError {
  const what =
    dtype === null
      ? 'is NaN or infinity: choose an earlier checkpoint'
      : `does not fit ${dtype}: keep the dtype that it is stored in (leave --dtype out)`;
  return new TroupeError('NON_FINITE', `[model] tensor ${name} in ${file}: element ${index} ${what}`);
}

export function writeAll(fd: number, source: Uint8Array, at: number): void {
  for (let done = 0; done < source.length; )
    done += writeSync(fd, source, done, source.length - done, at + done);
}
