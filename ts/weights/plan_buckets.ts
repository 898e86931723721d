import { badOption } from '../base/check_options';
import type { TensorMapping } from '../model/tensor_mapping';
import type { FileTensor } from '../model/tensor_names';
import { fileTensors } from '../model/tensor_names';
import type { NativeWeightChunk } from '../native/bridge';
import { rowBytes, rowCount, type WeightDtype, type WeightPart, type WeightTensor } from './weight_bucket';

/** A bucket before its bytes are there. */
export interface PlannedBucket {
  dtype: WeightDtype;
  parts: Omit<WeightPart, 'data'>[];
  chunks: NativeWeightChunk[];
  bytes: number;
}

/**
 * Tensors in the order of `mapping`, which is that of the parameter groups, in buckets of at most `bucketBytes`: whole, or by rows
 * where one alone is larger. Buffers come last, in float32 whatever `dtype` says.
 */
export function planBuckets(
  where: string,
  mapping: readonly TensorMapping[],
  dtype: WeightDtype,
  bucketBytes: number,
): PlannedBucket[] {
  const buckets: PlannedBucket[] = [];
  let bucket: PlannedBucket = { dtype, parts: [], chunks: [], bytes: 0 };
  const flush = (next: WeightDtype): void => {
    if (bucket.parts.length > 0) buckets.push(bucket);
    bucket = { dtype: next, parts: [], chunks: [], bytes: 0 };
  };
  const tensors = fileTensors(mapping);
  const buffers = tensors.filter(([m]) => m.buffer);
  for (const of of [...tensors.filter(([m]) => !m.buffer), ...buffers]) {
    const [m] = of;
    const tensor: WeightTensor = { name: m.hf, dtype: m.buffer ? 'float32' : dtype, shape: m.shape };
    if (tensor.dtype !== bucket.dtype) flush(tensor.dtype);
    const width = rowBytes(tensor);
    if (width > bucketBytes) {
      throw badOption(
        where,
        `bucketBytes: expected at least ${width}, the bytes of one row of ${m.hf} [${m.shape.join(', ')}], but got ${bucketBytes}`,
      );
    }
    const all = rowCount(m);
    const atOnce = Math.floor(bucketBytes / width);
    for (let row = 0; row < all; row += atOnce) {
      const rows = Math.min(atOnce, all - row);
      if (bucket.bytes + rows * width > bucketBytes) flush(tensor.dtype);
      bucket.parts.push({ ...tensor, row, rows });
      bucket.chunks.push(...chunksOf(of, row, rows));
      bucket.bytes += rows * width;
    }
  }
  flush(dtype);
  return buckets;
}

/** Rows [row, row + rows) of a Hugging Face tensor as the core finds them; a row of one that has parts is a part. */
export function chunksOf(tensor: FileTensor, row: number, rows: number): NativeWeightChunk[] {
  const [whole] = tensor;
  if (whole.part === undefined) return [chunkOf(whole, row, rows)];
  return tensor
    .slice(row, row + rows)
    .map((m) => chunkOf(m, 0, m.transpose ? (m.shape[1] as number) : m.rows));
}

const chunkOf = (m: TensorMapping, first: number, count: number): NativeWeightChunk => ({
  param: m.param,
  row: m.row,
  rows: m.rows,
  transpose: m.transpose,
  label: m.hf,
  first,
  count,
});
