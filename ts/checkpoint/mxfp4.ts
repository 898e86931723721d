// Experts as gpt-oss is published: MXFP4 of the OCP Microscaling Formats (MX) specification v1.0, sections 5.1, 5.3.3 and 5.4.1.
import { printable } from '../base/printable';
import { TroupeError } from '../errors';
import type { NativeScales } from '../native/bridge';
import type { StoredTensor } from './safetensors';

/** Not of safetensors: a tensor of which the file has blocks and scales. */
export const MXFP4 = 'MXFP4' as const;
/** Values with a scale in common, a power of two. */
export const BLOCK = 32;

const BLOCKS = '_blocks';
const SCALES = '_scales';
/** Two values to the byte, the first one in the lower four bits. */
const BLOCK_BYTES = BLOCK / 2;

/**
 * The tensors of a checkpoint, where `X_blocks` [experts, outputs, blocks, 16] and `X_scales` [experts, outputs, blocks], both U8, are one, X: of the
 * dtype MXFP4, with the place of its blocks, and of the shape that transformers gives it, [experts, 32 blocks, outputs].
 * @throws TroupeError INVALID_MODEL naming one of a pair that is alone, of another dtype or of a shape that does not fit, and what is there twice
 */
export function withPackedTensors(stored: ReadonlyMap<string, StoredTensor>): Map<string, StoredTensor> {
  const all = new Map<string, StoredTensor>();
  for (const [hf, tensor] of stored) {
    if (hf.endsWith(SCALES)) partner(stored, tensor, hf, SCALES, BLOCKS);
    else if (!hf.endsWith(BLOCKS)) all.set(hf, tensor);
    else {
      const name = hf.slice(0, -BLOCKS.length);
      const twin = stored.get(name);
      if (twin !== undefined)
        throw invalid(
          tensor,
          `${printable(name, { max: 200 })} is there as well, in ${twin.file}: expected one of them`,
        );
      all.set(name, packed(tensor, partner(stored, tensor, hf, BLOCKS, SCALES)));
    }
  }
  return all;
}

/** As it lies in the file: [experts, outputs, blocks, 16]. */
export const blocksShape = ([experts = 0, inputs = 0, outputs = 0]: readonly number[]): number[] => [
  experts,
  outputs,
  inputs / BLOCK,
  BLOCK_BYTES,
];

export const blocksName = (name: string): string => name + BLOCKS;

/** Of `values` numbers: the bytes of their blocks, and those of their scales. */
export const packedBytes = (values: number): { blocks: number; scales: number } => ({
  blocks: values / 2,
  scales: values / BLOCK,
});

/** Where in the files the expert at `part` begins, in the order of its parameter, [outputs, inputs]: not transposed. */
export function packedPart(
  { shape: [, inputs = 0, outputs = 0], offset, scales }: StoredTensor & { scales: StoredTensor },
  part: number,
): { offset: number; scales: NativeScales } {
  const before = packedBytes(part * inputs * outputs);
  return {
    offset: offset + before.blocks,
    scales: { path: scales.file, offset: scales.offset + before.scales },
  };
}

export const isPacked = (tensor: StoredTensor): tensor is StoredTensor & { scales: StoredTensor } =>
  tensor.scales !== undefined;

function partner(
  stored: ReadonlyMap<string, StoredTensor>,
  tensor: StoredTensor,
  hf: string,
  own: string,
  other: string,
): StoredTensor {
  const found = stored.get(hf.slice(0, -own.length) + other);
  if (found !== undefined) return found;
  throw invalid(
    tensor,
    `expected ${printable(hf.slice(0, -own.length) + other, { max: 200 })} beside it, which no file has: fetch the checkpoint again`,
  );
}

function packed(blocks: StoredTensor, scales: StoredTensor): StoredTensor {
  for (const part of [blocks, scales])
    if (part.dtype !== 'U8') throw invalid(part, `expected U8, got ${printable(part.dtype, { max: 50 })}`);
  const { shape } = blocks;
  const [experts = 0, outputs = 0, count = 0, bytes] = shape;
  if (shape.length !== 4 || bytes !== BLOCK_BYTES)
    throw invalid(
      blocks,
      `expected the shape [experts, outputs, blocks, ${BLOCK_BYTES}], got [${shown(shape)}]`,
    );
  if (shown(scales.shape) !== shown(shape.slice(0, 3))) {
    throw invalid(
      scales,
      `expected the shape [${shown(shape.slice(0, 3))}], a scale for each block of ${printable(blocks.name, { max: 200 })}, got [${shown(scales.shape)}]`,
    );
  }
  const name = blocks.name.slice(0, -BLOCKS.length);
  return { ...blocks, name, dtype: MXFP4, shape: [experts, count * BLOCK, outputs], scales };
}

const shown = (shape: readonly number[]): string => shape.join(', ');

const invalid = ({ name, file }: StoredTensor, message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[model] ${file}: tensor '${printable(name, { max: 200 })}': ${message}`);

export const hasPacked = (stored: ReadonlyMap<string, StoredTensor>): boolean =>
  [...stored.values()].some(isPacked);

/** Magnitudes of E2M1, by their three bits; the fourth is the sign. */
const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6];
const SCALE_BIAS = 127;
const SCALE_NAN = 0xff;
const NOT_A_NUMBER = 0x7fc0;

/** Of a scale: the bits in bfloat16 of all sixteen values, which are exact but where they overflow to infinity. */
function scaledValues(scale: number): Uint16Array {
  if (scale === SCALE_NAN) return new Uint16Array(2 * E2M1.length).fill(NOT_A_NUMBER);
  const values = Float32Array.from(
    [...E2M1, ...E2M1.map((value) => -value)],
    (value) => value * 2 ** (scale - SCALE_BIAS),
  );
  return Uint16Array.from(new Uint32Array(values.buffer), (bits) => bits >>> 16);
}

/**
 * bfloat16 bits, [32 blocks, outputs], of `blocks` [outputs, blocks, 16] and `scales` [outputs, blocks]: as convert_moe_packed_tensors of transformers has
 * them. NaN where a scale is.
 */
export function dequantized(blocks: Uint8Array, scales: Uint8Array, outputs: number): Uint16Array {
  const count = scales.length / outputs;
  const bits = new Uint16Array(count * BLOCK * outputs);
  const tables: (Uint16Array | undefined)[] = [];
  // Outputs within: what is written lies together.
  for (let block = 0; block < count; block++) {
    for (let output = 0; output < outputs; output++) {
      const from = output * count + block;
      const scale = scales[from] as number;
      tables[scale] ??= scaledValues(scale);
      const table = tables[scale] as Uint16Array;
      let to = block * BLOCK * outputs + output;
      for (let at = from * BLOCK_BYTES; at < (from + 1) * BLOCK_BYTES; at++) {
        const pair = blocks[at] as number;
        bits[to] = table[pair & 15] as number;
        bits[to + outputs] = table[pair >>> 4] as number;
        to += 2 * outputs;
      }
    }
  }
  return bits;
}
