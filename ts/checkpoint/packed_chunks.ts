// Packed tensors as numbers, without the core.
import { TroupeError } from '../errors';
import { convertFloats } from './float_bytes';
import { dequantizedRows } from './fp8';
import { dequantized, MXFP4 } from './mxfp4';
import { isShared, type PackedTensor, packedMatrix } from './packed_tensor';
import type { Packing, StoredTensor } from './safetensors';
import { StoredBytes } from './stored_bytes';
import type { FloatDtype } from './write_plan';

/** Codes that are read at a time, at least one row; of MXFP4 it is one expert. */
const CHUNK_BYTES = 4 * 2 ** 20;

export interface FloatChunk {
  bytes: Uint8Array;
  dtype: FloatDtype;
}

/**
 * All values of a tensor, in the order of its shape: of MXFP4 in bfloat16, where they are exact, of FP8 in float32.
 * @throws TroupeError NON_FINITE naming scales that are not finite, or 0 where values are not; IO for a file that ends early
 */
export function* unpackedChunks(source: PackedTensor): Generator<FloatChunk> {
  const [codes, scales] = [new StoredBytes(source), new StoredBytes(source.packing.scales)];
  try {
    yield* source.dtype === MXFP4 ? mxfp4Chunks(source, codes, scales) : fp8Chunks(source, codes, scales);
  } finally {
    codes.close();
    scales.close();
  }
}

/** Expert by expert. */
function* mxfp4Chunks(
  { bytes, shape, packing }: PackedTensor,
  codes: StoredBytes,
  scales: StoredBytes,
): Generator<FloatChunk> {
  const [experts = 0, , outputs = 0] = shape;
  for (let expert = 0; expert < experts; expert++) {
    const blocks = part(codes, expert, bytes / experts);
    const own = part(scales, expert, packing.scales.bytes / experts);
    yield { bytes: new Uint8Array(dequantized(blocks, own, outputs).buffer), dtype: 'BF16' };
  }
}

/** Rows of a matrix, and one matrix behind the other. */
function* fp8Chunks(source: PackedTensor, codes: StoredBytes, scales: StoredBytes): Generator<FloatChunk> {
  const { packing, bytes } = source;
  const { rows, columns } = packedMatrix(source);
  const parts = bytes / (rows * columns);
  const shared = isShared(packing);
  const size = packing.scales.bytes / (shared ? 1 : parts);
  const step = Math.max(1, Math.floor(CHUNK_BYTES / columns));
  for (let index = 0; index < parts; index++) {
    const own = numbersOf(packing, part(scales, shared ? 0 : index, size));
    for (let row = 0; row < rows; row += step) {
      const at = (index * rows + row) * columns;
      const read = codes.read(new Uint8Array(Math.min(step, rows - row) * columns), at);
      const { values, lost } = dequantizedRows(read, row, columns, own, packing.block);
      if (lost !== null)
        throw badScale(packing.scales, `is 0 for element ${at + lost} of ${source.name}, which is not`);
      yield { bytes: new Uint8Array(values.buffer), dtype: 'F32' };
    }
  }
}

const part = (file: StoredBytes, index: number, size: number): Uint8Array =>
  file.read(new Uint8Array(size), index * size);

/** Scales in float32. */
function numbersOf({ scales, scaleDtype }: Packing, bytes: Uint8Array): Float32Array {
  if (scaleDtype === 'F8_E8M0') {
    const nan = bytes.indexOf(0xff);
    if (nan !== -1) throw badScale(scales, `is NaN (0xff, scale ${nan} of a matrix)`);
    return Float32Array.from(bytes, (exponent) => 2 ** (exponent - 127));
  }
  const { bytes: wide, bad } = convertFloats(bytes, scaleDtype, 'F32');
  if (bad !== null) throw badScale(scales, `is NaN or infinity (scale ${bad.index} of a matrix)`);
  return new Float32Array(wide.buffer, wide.byteOffset, wide.length / 4);
}

const badScale = ({ name, file }: StoredTensor, what: string): TroupeError =>
  new TroupeError(
    'NON_FINITE',
    `[model] tensor ${name} in ${file}: a scale ${what}: fetch the checkpoint again`,
  );
