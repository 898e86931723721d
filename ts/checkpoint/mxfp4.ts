// Experts as gpt-oss is published: MXFP4 of the OCP Microscaling Formats (MX) specification v1.0, sections 5.1, 5.3.3 and 5.4.1.
import { printable } from '../base/printable';
import { badTensor, shownName, shownShape } from './packed_tensor';
import type { StoredTensor } from './safetensors';

/** Not of safetensors: a tensor of which the file has blocks and scales. */
export const MXFP4 = 'MXFP4' as const;
/** Values with a scale in common, a power of two. */
const BLOCK = 32;

const BLOCKS = '_blocks';
const SCALES = '_scales';
/** Two values to the byte, the first one in the lower four bits. */
const BLOCK_BYTES = BLOCK / 2;

/**
 * The tensors of a checkpoint, where `X_blocks` [experts, outputs, blocks, 16] and `X_scales` [experts, outputs, blocks], both U8, are one, X: of the
 * dtype MXFP4, with the place of its blocks, and of the shape that transformers gives it, [experts, 32 blocks, outputs].
 * @throws TroupeError INVALID_MODEL naming one of a pair that is alone, of another dtype or of a shape that does not fit, and what is there twice
 */
export function withMxfp4(stored: ReadonlyMap<string, StoredTensor>): Map<string, StoredTensor> {
  const all = new Map<string, StoredTensor>();
  for (const [hf, tensor] of stored) {
    if (hf.endsWith(SCALES)) partner(stored, tensor, hf, SCALES, BLOCKS);
    else if (!hf.endsWith(BLOCKS)) all.set(hf, tensor);
    else {
      const name = hf.slice(0, -BLOCKS.length);
      const twin = stored.get(name);
      if (twin !== undefined)
        throw badTensor(tensor, `${shownName(name)} is there as well, in ${twin.file}: expected one of them`);
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

function partner(
  stored: ReadonlyMap<string, StoredTensor>,
  tensor: StoredTensor,
  hf: string,
  own: string,
  other: string,
): StoredTensor {
  const name = hf.slice(0, -own.length) + other;
  const found = stored.get(name);
  if (found !== undefined) return found;
  throw badTensor(
    tensor,
    `expected ${shownName(name)} beside it, which no file has: fetch the checkpoint again`,
  );
}

function packed(blocks: StoredTensor, scales: StoredTensor): StoredTensor {
  for (const part of [blocks, scales])
    if (part.dtype !== 'U8') throw badTensor(part, `expected U8, got ${printable(part.dtype, { max: 50 })}`);
  const { shape } = blocks;
  const [experts = 0, outputs = 0, count = 0, bytes] = shape;
  if (shape.length !== 4 || bytes !== BLOCK_BYTES)
    throw badTensor(
      blocks,
      `expected the shape [experts, outputs, blocks, ${BLOCK_BYTES}], got ${shownShape(shape)}`,
    );
  if (scales.shape.join() !== shape.slice(0, 3).join()) {
    throw badTensor(
      scales,
      `expected the shape ${shownShape(shape.slice(0, 3))}, a scale for each block of ${shownName(blocks.name)}, got ${shownShape(scales.shape)}`,
    );
  }
  return {
    ...blocks,
    name: blocks.name.slice(0, -BLOCKS.length),
    dtype: MXFP4,
    shape: [experts, count * BLOCK, outputs],
    packing: { scales, scaleDtype: 'F8_E8M0', block: [1, BLOCK], transposed: true },
  };
}

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
