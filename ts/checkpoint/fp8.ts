// Matrices in FP8: E4M3 of the OCP 8-bit Floating Point specification (OFP8) v1.0, with scales beside them, as transformers
// (FineGrainedFP8Config) and compressed-tensors (float-quantized) write them.
import { printable } from '../base/printable';
import { counted } from '../base/text';
import type { ScaleLayout } from '../model/hf_quantization';
import type { NativeScales } from '../native/bridge';
import { badTensor, blocksOf, shownName, shownShape } from './packed_tensor';
import type { Packing, StoredTensor } from './safetensors';

export const F8_E4M3 = 'F8_E4M3' as const;

/** What is multiplied, though publishers of the first kind call it an inverse. */
const SUFFIXES = ['_scale_inv', '_scale'] as const;

/** Scales of what weights are multiplied with, and of keys and values in a cache, which are not quantised here. */
const OTHER_SCALES = /(^|[._])(input|activation|output|q|k|v|prob)_scale(_inv)?$/;

/** By their dtype in the files. */
const SCALE_DTYPES: Readonly<Record<string, NativeScales['dtype']>> = {
  F32: 'F32',
  F16: 'F16',
  BF16: 'BF16',
  F8_E8M0: 'F8_E8M0',
  U8: 'F8_E8M0', // as it was written before safetensors had a name for it
};

export interface Fp8Tensors {
  tensors: Map<string, StoredTensor>;
  /** Names of scales of something else than weights. */
  unused: string[];
}

/**
 * The tensors of a checkpoint, where `X` [rows, columns] or [parts, rows, columns] in F8_E4M3 and its scales, `X_scale_inv` or `X_scale` in one of the
 * `layouts`, are one, X.
 * @throws TroupeError INVALID_MODEL naming what has no partner, two, or one of a dtype or shape that does not fit
 */
export function withFp8(
  stored: ReadonlyMap<string, StoredTensor>,
  layouts: readonly ScaleLayout[],
): Fp8Tensors {
  const tensors = new Map<string, StoredTensor>();
  const unused: string[] = [];
  for (const [hf, tensor] of stored) {
    const weight = weightOf(stored, hf);
    if (tensor.dtype === F8_E4M3) tensors.set(hf, packed(tensor, scalesOf(stored, hf, tensor), layouts));
    else if (weight === null) tensors.set(hf, tensor);
    else if (weight !== undefined) checkWeight(weight, tensor);
    else if (OTHER_SCALES.test(hf)) unused.push(hf);
    else
      throw badTensor(
        tensor,
        `these are scales, and no file has what they belong to, ${shownName(withoutSuffix(hf) as string)}: fetch the checkpoint again`,
      );
  }
  return { tensors, unused };
}

const SHOWN = 3;

/** What is said of scales of something else than weights; null: there are none. */
export function unusedScalesNote(unused: readonly string[]): string | null {
  if (unused.length === 0) return null;
  const names = unused.slice(0, SHOWN).map(shownName).join(', ');
  return (
    `${counted(unused.length, 'tensor')} of its files ${unused.length === 1 ? 'makes' : 'make'} no difference, scales of activations or of keys and values in a ` +
    `cache, which are not quantised here: ${names}${unused.length > SHOWN ? ', ...' : ''}`
  );
}

/** Of scales: what they belong to, undefined where it is not there; null: of another tensor. */
function weightOf(stored: ReadonlyMap<string, StoredTensor>, hf: string): StoredTensor | undefined | null {
  const name = withoutSuffix(hf);
  return name === null ? null : stored.get(name);
}

function withoutSuffix(hf: string): string | null {
  const suffix = SUFFIXES.find((end) => hf.endsWith(end));
  return suffix === undefined ? null : hf.slice(0, -suffix.length);
}

function checkWeight(weight: StoredTensor, scales: StoredTensor): void {
  if (weight.dtype === F8_E4M3) return;
  throw badTensor(
    weight,
    `expected ${F8_E4M3}, because there are scales for it, ${shownName(scales.name)}, got ${printable(weight.dtype, { max: 50 })}: fetch the checkpoint again`,
  );
}

function scalesOf(stored: ReadonlyMap<string, StoredTensor>, hf: string, tensor: StoredTensor): StoredTensor {
  const names = SUFFIXES.map((suffix) => hf + suffix);
  const [first, second] = names.flatMap((name) => stored.get(name) ?? []);
  if (first === undefined)
    throw badTensor(
      tensor,
      `expected its scales beside it, ${names.map(shownName).join(' or ')}, which no file has: fetch the checkpoint again`,
    );
  if (second !== undefined)
    throw badTensor(
      second,
      `${shownName(first.name)} is there as well, in ${first.file}: expected one of them`,
    );
  return first;
}

function packed(
  tensor: StoredTensor,
  scales: StoredTensor,
  layouts: readonly ScaleLayout[],
): StoredTensor & { packing: Packing } {
  const { shape } = tensor;
  if (shape.length !== 2 && shape.length !== 3)
    throw badTensor(
      tensor,
      `expected a matrix, or one for each expert, in ${F8_E4M3}, got the shape ${shownShape(shape)}`,
    );
  const scaleDtype = Object.hasOwn(SCALE_DTYPES, scales.dtype) ? SCALE_DTYPES[scales.dtype] : undefined;
  if (scaleDtype === undefined)
    throw badTensor(
      scales,
      `expected scales in F32, F16, BF16 or F8_E8M0, got ${printable(scales.dtype, { max: 50 })}`,
    );
  const fitting = layouts.find((layout) => fits(scales.shape, shape, layout));
  if (fitting !== undefined)
    return {
      ...tensor,
      packing: { scales, scaleDtype, block: blockOf(shape, fitting), transposed: false },
    };
  const shapes = new Set(layouts.map((layout) => shownShape(scaleShape(shape, layout))));
  throw badTensor(
    scales,
    `expected the shape ${[...shapes].join(' or ')} by the quantization_config of config.json, for ${shownName(tensor.name)} ${shownShape(shape)}, got ${shownShape(scales.shape)}`,
  );
}

/** One scale for all is a vector of one number, or a number. */
const fits = (scales: readonly number[], shape: readonly number[], layout: ScaleLayout): boolean =>
  scales.join() === scaleShape(shape, layout).join() ||
  (layout === 'tensor' && (scales.length === 0 || scales.join() === '1'));

function scaleShape(shape: readonly number[], layout: ScaleLayout): number[] {
  const [rows = 0, columns = 0] = shape.slice(-2);
  const blocks = blocksOf({ rows, columns }, blockOf(shape, layout));
  return [...shape.slice(0, -2), blocks.rows, blocks.columns];
}

/** At least 1 x 1, so that a matrix without values has none. */
function blockOf(shape: readonly number[], layout: ScaleLayout): Packing['block'] {
  const [rows = 0, columns = 0] = shape.slice(-2);
  if (layout === 'tensor') return [Math.max(rows, 1), Math.max(columns, 1)];
  return layout === 'channel' ? [1, Math.max(columns, 1)] : layout;
}

/** Of every code, its number. */
const E4M3 = Float32Array.from({ length: 256 }, (_, code) => {
  const exponent = (code >> 3) & 15;
  const mantissa = code & 7;
  const sign = code < 128 ? 1 : -1;
  if (exponent === 15 && mantissa === 7) return Number.NaN;
  return sign * (exponent === 0 ? mantissa * 2 ** -9 : (1 + mantissa / 8) * 2 ** (exponent - 7));
});

export interface Fp8Rows {
  values: Float32Array;
  /** Index of the first value that is not 0 under a scale that is; null: none. */
  lost: number | null;
}

/**
 * Rows of a matrix from `first` on, [rows, columns], of their codes: the number of each times its scale, in float32, rounded once. `scales`: those of all of
 * the matrix, row by row.
 */
export function dequantizedRows(
  codes: Uint8Array,
  first: number,
  columns: number,
  scales: Float32Array,
  [blockRows, blockColumns]: Packing['block'],
): Fp8Rows {
  const values = new Float32Array(codes.length);
  const perRow = Math.ceil(columns / blockColumns);
  let lost: number | null = null;
  for (let start = 0, row = first; start < codes.length; start += columns, row++) {
    const own = Math.floor(row / blockRows) * perRow;
    for (let block = 0; block < perRow; block++) {
      const scale = scales[own + block] as number;
      const from = start + block * blockColumns;
      const to = Math.min(from + blockColumns, start + columns);
      // The product of two float32 is exact in float64: the array rounds it once.
      for (let i = from; i < to; i++) values[i] = (E4M3[codes[i] as number] as number) * scale;
      if (scale === 0 && lost === null) lost = firstOther(codes, from, to);
    }
  }
  return { values, lost };
}

/** Of the codes in a range, the index of the first that is not a zero. */
function firstOther(codes: Uint8Array, from: number, to: number): number | null {
  for (let i = from; i < to; i++) if (((codes[i] as number) & 0x7f) !== 0) return i;
  return null;
}
