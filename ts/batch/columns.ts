import { isDeepStrictEqual, types } from 'node:util';
import { isRecord } from '../base/check_options';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import type { Layout } from './layout';
import { type PromptImage, requireImages } from './prompt_image';

/** What a column has one value for: a token, a response token, or a sequence. */
export type Granularity = 'token' | 'response' | 'sequence';

export type ColumnData = Float32Array | Int32Array | Uint8Array | unknown[];

/** One column of a batch. `data` is never written to after construction. */
export interface Column {
  readonly granularity: Granularity;
  readonly data: ColumnData;
}

/** Names whose meaning is fixed, with the type `get` returns for them. */
export interface KnownColumns {
  tokens: Int32Array;
  promptLens: Int32Array;
  responseMask: Uint8Array;
  oldLogProbs: Float32Array;
  refLogProbs: Float32Array;
  rolloutLogProbs: Float32Array;
  entropy: Float32Array;
  sumPiSquared: Float32Array;
  values: Float32Array;
  tokenScores: Float32Array;
  tokenRewards: Float32Array;
  advantages: Float32Array;
  returns: Float32Array;
  rolloutIsWeights: Float32Array;
  turn: Int32Array;
  version: Int32Array;
  teacherLogProbs: Float32Array;
  /** [B] of [R * k]: of the k tokens that a teacher finds likeliest in the place of each response token, the likeliest first. */
  teacherTopLogProbs: Float32Array[];
  teacherTopIds: Int32Array[];
  /** [B] of [L * bytes of a token]: the experts that each token of a sequence went to. */
  routedExperts: Uint8Array[];
  /** [B] of the images of each prompt, in order; sequences of one prompt share them. */
  images: (readonly PromptImage[])[];
}

type Dtype = 'int32' | 'uint8' | 'float32' | 'any';

const KNOWN: Readonly<Record<string, { granularity: Granularity; dtype: Dtype }>> = {
  tokens: { granularity: 'token', dtype: 'int32' },
  responseMask: { granularity: 'response', dtype: 'uint8' },
  oldLogProbs: { granularity: 'response', dtype: 'float32' },
  refLogProbs: { granularity: 'response', dtype: 'float32' },
  rolloutLogProbs: { granularity: 'response', dtype: 'float32' },
  entropy: { granularity: 'response', dtype: 'float32' },
  sumPiSquared: { granularity: 'response', dtype: 'float32' },
  values: { granularity: 'response', dtype: 'float32' },
  tokenScores: { granularity: 'response', dtype: 'float32' },
  tokenRewards: { granularity: 'response', dtype: 'float32' },
  advantages: { granularity: 'response', dtype: 'float32' },
  returns: { granularity: 'response', dtype: 'float32' },
  rolloutIsWeights: { granularity: 'response', dtype: 'float32' },
  turn: { granularity: 'response', dtype: 'int32' },
  version: { granularity: 'response', dtype: 'int32' },
  teacherLogProbs: { granularity: 'response', dtype: 'float32' },
  teacherTopLogProbs: { granularity: 'sequence', dtype: 'any' },
  teacherTopIds: { granularity: 'sequence', dtype: 'any' },
  routedExperts: { granularity: 'sequence', dtype: 'any' },
  images: { granularity: 'sequence', dtype: 'any' },
  promptLens: { granularity: 'sequence', dtype: 'int32' },
  uid: { granularity: 'sequence', dtype: 'any' },
  dataSource: { granularity: 'sequence', dtype: 'any' },
  groundTruth: { granularity: 'sequence', dtype: 'any' },
  score: { granularity: 'sequence', dtype: 'any' },
};

export const knownGranularity = (name: string): Granularity | null =>
  Object.hasOwn(KNOWN, name) ? (KNOWN[name]?.granularity ?? null) : null;

const isArrayLike = (value: unknown): value is ArrayLike<unknown> =>
  Array.isArray(value) || (ArrayBuffer.isView(value) && !types.isDataView(value));

const describe = (value: unknown): string =>
  value === null ? 'null' : isArrayLike(value) ? `an array of ${value.length}` : `a ${typeof value}`;

/** Values of a column. */
export const lengthOf = (layout: Layout, granularity: Granularity): number =>
  granularity === 'token'
    ? layout.numTokens
    : granularity === 'response'
      ? layout.numResponseTokens
      : layout.size;

const unitOf: Record<Granularity, string> = {
  token: 'one value per token',
  response: 'one value per response token',
  sequence: 'one value per sequence',
};

/**
 * Checks `value` against the layout and stores a copy in the column's own type, or with `adopt` the typed array itself where it has
 * that type. A column of response tokens may
 * also be given per sequence, as an array of arrays. `explicit` settles the granularity of a name that is not a known one.
 */
export function makeColumn(
  name: string,
  value: unknown,
  layout: Layout,
  explicit?: Granularity,
  adopt = false,
): Column {
  if (!isArrayLike(value)) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[batch] column '${name}': expected an array or typed array but got ${describe(value)}`,
    );
  }
  const known = knownGranularity(name);
  if (known !== null && explicit !== undefined && explicit !== known) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[batch] column '${name}' always has ${unitOf[known]}; got granularity '${explicit}'`,
    );
  }
  const granularity = known ?? explicit ?? inferGranularity(name, value, layout);
  const flat = granularity === 'sequence' ? value : flatten(name, value, layout, granularity);
  const expected = lengthOf(layout, granularity);
  if (flat.length !== expected) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[batch] column '${name}': expected ${expected} entries (${unitOf[granularity]}; the batch has ${layout.size} sequences, ` +
        `${layout.numTokens} tokens, ${layout.numResponseTokens} response tokens) but got ${flat.length}`,
    );
  }
  if (name === 'images') checkImages(flat);
  const dtype = known === null ? 'any' : (KNOWN[name]?.dtype ?? 'any');
  return {
    granularity,
    data: granularity === 'sequence' ? copySequence(flat) : tokenData(name, flat, dtype, adopt),
  };
}

/** Those of each prompt; samples of one share a list, which is looked at once. */
function checkImages(lists: ArrayLike<unknown>): void {
  const seen = new Set<unknown>();
  for (let i = 0; i < lists.length; i++) {
    if (seen.has(lists[i])) continue;
    requireImages(`batch: column 'images', sequence ${i}`, lists[i]);
    seen.add(lists[i]);
  }
}

function inferGranularity(name: string, value: ArrayLike<unknown>, layout: Layout): Granularity {
  const fits = (['token', 'response', 'sequence'] as const).filter(
    (g) => lengthOf(layout, g) === value.length,
  );
  const only = fits[0];
  // Strings and objects only make sense per sequence.
  if (fits.includes('sequence') && !isNumeric(value)) return 'sequence';
  if (only !== undefined && fits.length === 1) return only;
  if (fits.length > 1) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[batch] column '${name}' has ${value.length} entries, which fits ${fits.map((g) => unitOf[g]).join(' and ')}: ` +
        `say which with the option { granularity: { ${name}: '${fits[0]}' } }`,
    );
  }
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `[batch] column '${name}': expected ${layout.size} entries (one per sequence), ${layout.numResponseTokens} (one per response ` +
      `token) or ${layout.numTokens} (one per token) but got ${value.length}`,
  );
}

function isNumeric(value: ArrayLike<unknown>): boolean {
  if (ArrayBuffer.isView(value)) return true;
  for (let i = 0; i < value.length; i++) if (typeof value[i] !== 'number') return false;
  return true;
}

/** Joins per-sequence arrays; a flat array passes through. */
function flatten(
  name: string,
  value: ArrayLike<unknown>,
  layout: Layout,
  granularity: 'token' | 'response',
): ArrayLike<unknown> {
  if (ArrayBuffer.isView(value) || value.length === 0 || !isArrayLike(value[0])) return value;
  const offsets = granularity === 'token' ? layout.seqOffsets : layout.responseOffsets;
  if (value.length !== layout.size) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[batch] column '${name}': expected ${layout.size} arrays (one per sequence) but got ${value.length}`,
    );
  }
  const out: unknown[] = new Array(lengthOf(layout, granularity));
  for (let i = 0; i < layout.size; i++) {
    const row = value[i];
    const start = offsets[i] as number;
    const length = (offsets[i + 1] as number) - start;
    if (!isArrayLike(row) || row.length !== length) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[batch] column '${name}', sequence ${i}: expected an array of ${length} but got ${describe(row)}`,
      );
    }
    for (let t = 0; t < length; t++) out[start + t] = row[t];
  }
  return out;
}

function copySequence(value: ArrayLike<unknown>): ColumnData {
  if (types.isFloat32Array(value)) return new Float32Array(value);
  if (types.isInt32Array(value)) return new Int32Array(value);
  if (types.isUint8Array(value)) return new Uint8Array(value);
  return Array.from(value);
}

function tokenData(name: string, value: ArrayLike<unknown>, dtype: Dtype, adopt: boolean): ColumnData {
  if (adopt && dtype === 'float32' && types.isFloat32Array(value)) return value;
  if (adopt && dtype === 'int32' && types.isInt32Array(value)) return value;
  if (adopt && dtype === 'uint8' && types.isUint8Array(value) && isMask(value))
    return Buffer.isBuffer(value) ? new Uint8Array(value.buffer, value.byteOffset, value.length) : value;
  switch (dtype) {
    case 'int32':
      return toInt32(name, value);
    case 'uint8':
      return toMask(`column '${name}'`, value);
    case 'float32':
      return toFloat32(name, value);
    default:
      if (types.isInt32Array(value)) return new Int32Array(value);
      if (types.isUint8Array(value)) return new Uint8Array(value);
      return toFloat32(name, value);
  }
}

function toFloat32(name: string, value: ArrayLike<unknown>): Float32Array {
  if (types.isFloat32Array(value)) return new Float32Array(value);
  const out = new Float32Array(value.length);
  for (let i = 0; i < out.length; i++) {
    const x = value[i];
    if (typeof x !== 'number') {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[batch] column '${name}', entry ${i}: expected a number but got ${describe(x)}`,
      );
    }
    out[i] = x;
  }
  return out;
}

/** Whole numbers that fit in int32, from numbers or bigints. */
export function toInt32(name: string, value: ArrayLike<unknown>): Int32Array {
  if (types.isInt32Array(value)) return new Int32Array(value);
  const out = new Int32Array(value.length);
  for (let i = 0; i < out.length; i++) {
    const given = value[i];
    // Number() alone would make 0 of null and 1 of true.
    const x = typeof given === 'number' || typeof given === 'bigint' ? Number(given) : Number.NaN;
    if ((x | 0) !== x) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[batch] column '${name}', entry ${i}: expected a 32-bit integer but got ${show(value[i])}`,
      );
    }
    out[i] = x;
  }
  return out;
}

/** Whether all bytes are 0 or 1; false, too, of others than ones alone in memory that does not begin at a multiple of four. */
function isMask(bytes: Uint8Array): boolean {
  const view = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  // All like the first: compared with themselves one on, which takes a tenth of a loop's time.
  if (view.length > 0 && view[0] === 1 && view.subarray(1).equals(view.subarray(0, -1))) return true;
  if (bytes.byteOffset % 4 !== 0) return false;
  const words = new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length >> 2);
  let all = 0;
  for (let i = 0; i < words.length; i++) all |= words[i] as number;
  for (let i = 4 * words.length; i < bytes.length; i++) all |= bytes[i] as number;
  return (all & 0xfefefefe) === 0;
}

/** A 0/1 mask, from numbers, booleans or bigints. Always a copy. */
export function toMask(name: string, value: ArrayLike<unknown>): Uint8Array {
  const out = types.isUint8Array(value) ? new Uint8Array(value) : maskOf(value);
  // 2 marks what was neither 0 nor 1; a Uint8Array may hold more.
  const bad = out.findIndex((bit) => bit > 1);
  if (bad >= 0) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[batch] ${name}, entry ${bad}: expected 0 or 1 but got ${show(value[bad])}`,
    );
  }
  return out;
}

function maskOf(value: ArrayLike<unknown>): Uint8Array {
  const out = new Uint8Array(value.length);
  for (let i = 0; i < out.length; i++) {
    const x = value[i];
    if (x === 1 || x === true || x === 1n) out[i] = 1;
    else if (x !== 0 && x !== false && x !== 0n) out[i] = 2;
  }
  return out;
}

/** `within`: what is being compared already, of `a` with its counterpart: objects may hold themselves. */
const sameValue = (a: unknown, b: unknown, within: ReadonlyMap<unknown, unknown> = new Map()): boolean => {
  if (Object.is(a, b) || a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  if (within.has(a)) return within.get(a) === b;
  // Dates, maps and the like are not their keys.
  if (!isPlain(a) || !isPlain(b)) return isDeepStrictEqual(a, b);
  const keys = Object.keys(a);
  const inside = new Map(within).set(a, b);
  return (
    isArrayLike(a) === isArrayLike(b) &&
    keys.length === Object.keys(b).length &&
    keys.every(
      (k) =>
        Object.hasOwn(b, k) &&
        sameValue((a as Record<string, unknown>)[k], (b as Record<string, unknown>)[k], inside),
    )
  );
};

const isPlain = (value: object): boolean => isArrayLike(value) || isRecord(value);

/** First index at which two columns differ (NaN equals NaN), or -1. */
export function firstDifference(a: Column, b: Column): number {
  if (a.granularity !== b.granularity || a.data.length !== b.data.length) return 0;
  for (let i = 0; i < a.data.length; i++) if (!sameValue(a.data[i], b.data[i])) return i;
  return -1;
}
