import path from 'node:path';
import type { TensorMapping } from '../model/tensor_mapping';
import type { FileTensor } from '../model/tensor_names';
import { fileTensors } from '../model/tensor_names';
import type { NativeTensorFile, NativeTensorSlice } from '../native/bridge';
import type { PackedDtype } from './packed_tensor';

export type FloatDtype = Exclude<NativeTensorSlice['dtype'], PackedDtype>;

const FLOAT_BYTES: Readonly<Record<FloatDtype, number>> = { F32: 4, F16: 2, BF16: 2 };

/** Of one element. */
export const floatBytes = (dtype: FloatDtype): number => FLOAT_BYTES[dtype];

export const isFloatDtype = (dtype: string): dtype is FloatDtype => Object.hasOwn(FLOAT_BYTES, dtype);

/** Bytes from the beginning of a tensor of this shape to the part at `part` of its first dimension. */
export const partOffset = (shape: readonly number[], part: number | undefined, dtype: FloatDtype): number =>
  (part ?? 0) * shape.slice(1).reduce((count, extent) => count * extent, FLOAT_BYTES[dtype]);

export interface WritePlan {
  files: NativeTensorFile[];
  /** Those of tensors that are kept as another model directory has them (checkpoint/stream_tensors.ts writes them). */
  kept: NativeTensorFile[];
  /** Content of `${base}.safetensors.index.json`; null when there is one file. */
  index: { metadata: { total_size: number }; weight_map: Record<string, string> } | null;
}

/** A tensor of a file, under the name that it is to be written by. */
export interface StoredTensorShape {
  hf: string;
  shape: readonly number[];
}

interface Item {
  tensor: FileTensor;
  dtype: FloatDtype;
  bytes: number;
}

export const DEFAULT_SHARD_BYTES = 5e9;

/**
 * Which tensor goes where in which file of `dir`: `${base}.safetensors`, or above `maxShardBytes` in all
 * `${base}-00001-of-0000N.safetensors` with an index. Wider dtypes come first, so that every tensor is aligned. Tensors that are `kept`
 * have files of their own, the last ones.
 */
export function planWrite(
  dir: string,
  base: string,
  mapping: readonly TensorMapping[],
  dtypeOf: (hf: string) => FloatDtype,
  maxShardBytes = DEFAULT_SHARD_BYTES,
  kept: readonly StoredTensorShape[] = [],
): WritePlan {
  const itemsOf = (mappings: readonly TensorMapping[]): Item[] =>
    fileTensors(mappings).map((tensor): Item => {
      const [m] = tensor;
      const dtype = m.buffer ? 'F32' : dtypeOf(m.hf);
      return { tensor, dtype, bytes: m.shape.reduce((n, d) => n * d, FLOAT_BYTES[dtype]) };
    });
  const own = shard(itemsOf(mapping), maxShardBytes);
  const shards = kept.length === 0 ? own : [...own, ...shard(itemsOf(kept.map(asStored)), maxShardBytes)];
  const name = (i: number): string =>
    shards.length === 1
      ? `${base}.safetensors`
      : `${base}-${pad5(i + 1)}-of-${pad5(shards.length)}.safetensors`;
  const all = shards.map((items, i) => planFile(path.join(dir, name(i)), items));
  const files = { files: all.slice(0, own.length), kept: all.slice(own.length) };
  if (shards.length === 1) return { ...files, index: null };
  const weightMap: Record<string, string> = {};
  for (const [i, part] of shards.entries()) for (const item of part) weightMap[item.tensor[0].hf] = name(i);
  const total = shards.flat().reduce((n, item) => n + item.bytes, 0);
  return { ...files, index: { metadata: { total_size: total }, weight_map: weightMap } };
}

/** What is written of a tensor by its name alone. */
export const asStored = ({ hf, shape }: StoredTensorShape): TensorMapping => ({
  hf,
  shape: [...shape],
  param: hf,
  row: 0,
  rows: shape[0] ?? 1,
  transpose: false,
});

const pad5 = (n: number): string => String(n).padStart(5, '0');

function shard(items: Item[], maxBytes: number): Item[][] {
  const shards: Item[][] = [[]];
  let bytes = 0;
  for (const item of items) {
    if (bytes > 0 && bytes + item.bytes > maxBytes) {
      shards.push([]);
      bytes = 0;
    }
    (shards[shards.length - 1] as Item[]).push(item);
    bytes += item.bytes;
  }
  return shards;
}

function planFile(file: string, items: Item[]): NativeTensorFile {
  const sorted = [...items].sort((a, b) => FLOAT_BYTES[b.dtype] - FLOAT_BYTES[a.dtype]);
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  let at = 0;
  for (const { tensor, dtype, bytes } of sorted) {
    header[tensor[0].hf] = { dtype, shape: tensor[0].shape, data_offsets: [at, at + bytes] };
    at += bytes;
  }
  const prefix = encodeHeader(JSON.stringify(header));
  let offset = prefix.length;
  const tensors = sorted.flatMap(({ tensor, dtype, bytes }) => {
    const begin = offset;
    offset += bytes;
    return tensor.map(
      ({ param, row, rows, transpose, hf, shape, part }): NativeTensorSlice => ({
        param,
        row,
        rows,
        transpose,
        label: hf,
        offset: begin + partOffset(shape, part, dtype),
        dtype,
        scales: null,
      }),
    );
  });
  return { path: file, header: prefix, size: offset, tensors };
}

/** Length prefix and JSON, padded with spaces so that the data starts at a multiple of 8. */
function encodeHeader(json: string): Uint8Array {
  const text = Buffer.from(json, 'utf8');
  const length = Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(8 + length).fill(0x20);
  new DataView(out.buffer).setBigUint64(0, BigInt(length), true);
  out.set(text, 8);
  return out;
}
