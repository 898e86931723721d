import { closeSync, openSync, readSync, writeSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import { TroupeError } from '../errors';
import type { NativeTensorFile } from '../native/bridge';
import { convertFloats } from './float_bytes';
import { dequantized, isPacked } from './mxfp4';
import type { StoredTensor } from './safetensors';
import { type FloatDtype, floatBytes } from './write_plan';

/** What is in memory at a time; of MXFP4 it is one expert. */
const CHUNK_BYTES = 16 * 2 ** 20;

/**
 * Writes planned safetensors files from stored tensors of the same names, chunk by chunk, in the planned dtypes. Other work of the
 * process goes on between two chunks.
 *
 * @throws TroupeError NON_FINITE naming a tensor that holds NaN or infinity, or a value that the dtype cannot hold; IO for a file that ends
 *   early. Errors of the file system come as they are.
 */
export async function streamTensors(
  files: readonly NativeTensorFile[],
  stored: ReadonlyMap<string, StoredTensor>,
): Promise<void> {
  for (const file of files) {
    const out = openSync(file.path, 'wx');
    try {
      writeAll(out, file.header, 0);
      let before: string | null = null;
      for (const { label, offset, dtype } of file.tensors) {
        // Parts of a tensor follow each other, and are copied with the first.
        if (label !== before)
          await copyTensor(stored.get(label) as StoredTensor, out, offset, dtype as FloatDtype);
        before = label;
      }
    } finally {
      closeSync(out);
    }
  }
}

async function copyTensor(
  source: StoredTensor,
  out: number,
  offset: number,
  dtype: FloatDtype,
): Promise<void> {
  const packed = isPacked(source);
  const from = packed ? 'BF16' : (source.dtype as FloatDtype);
  let [done, at] = [0, offset];
  for (const chunk of packed ? unpackedExperts(source) : chunksOf(source)) {
    const { bytes, bad } = convertFloats(chunk, from, dtype === 'F16' ? 'same' : dtype);
    if (bad !== null)
      throw badValue(source, done / floatBytes(from) + bad.index, bad.overflow ? dtype : null);
    writeAll(out, bytes, at);
    done += chunk.length;
    at += bytes.length;
    await setImmediate();
  }
}

/** Its bytes; a chunk is gone with the next. */
function* chunksOf(source: StoredTensor): Generator<Uint8Array> {
  const buffer = new Uint8Array(Math.min(CHUNK_BYTES, source.bytes));
  const fd = openSync(source.file, 'r');
  try {
    for (let done = 0; done < source.bytes; done += buffer.length) {
      const chunk = buffer.subarray(0, Math.min(buffer.length, source.bytes - done));
      readAll(fd, source, chunk, done);
      yield chunk;
    }
  } finally {
    closeSync(fd);
  }
}

/** In bfloat16, expert by expert. */
function* unpackedExperts(source: StoredTensor & { scales: StoredTensor }): Generator<Uint8Array> {
  const { scales, shape } = source;
  const [experts = 0, , outputs = 0] = shape;
  const [fd, scaleFd] = [openSync(source.file, 'r'), openSync(scales.file, 'r')];
  try {
    const blocks = new Uint8Array(source.bytes / experts);
    const own = new Uint8Array(scales.bytes / experts);
    for (let expert = 0; expert < experts; expert++) {
      readAll(fd, source, blocks, expert * blocks.length);
      readAll(scaleFd, scales, own, expert * own.length);
      yield new Uint8Array(dequantized(blocks, own, outputs).buffer);
    }
  } finally {
    closeSync(fd);
    closeSync(scaleFd);
  }
}

function badValue({ name, file }: StoredTensor, index: number, dtype: FloatDtype | null): TroupeError {
  const what =
    dtype === null
      ? 'is NaN or infinity: choose an earlier checkpoint'
      : `does not fit ${dtype}: keep the dtype that it is stored in (leave --dtype out)`;
  return new TroupeError('NON_FINITE', `[model] tensor ${name} in ${file}: element ${index} ${what}`);
}

function readAll(fd: number, { file, offset }: StoredTensor, target: Uint8Array, from: number): void {
  for (let done = 0; done < target.length; ) {
    const got = readSync(fd, target, done, target.length - done, offset + from + done);
    if (got === 0) throw new TroupeError('IO', `[model] ${file} ended early: it was truncated`);
    done += got;
  }
}

function writeAll(fd: number, source: Uint8Array, at: number): void {
  for (let done = 0; done < source.length; )
    done += writeSync(fd, source, done, source.length - done, at + done);
}
