import { types } from 'node:util';
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import { arrayLength, checkCount, checkGranularity, checkRecord, own } from './arguments';
import type { Column, Granularity } from './columns';
import { knownGranularity, toMask } from './columns';
import type { Layout } from './layout';
import { makeLayout } from './layout';

/** verl's layout: [B, P+R] row-major, prompts left-padded, responses right-padded. */
export interface PaddedInput {
  /** [B, P+R] */
  inputIds: Int32Array | BigInt64Array | ArrayLike<number>;
  /** [B, P+R], 0 or 1 */
  attentionMask: ArrayLike<number> | ArrayLike<bigint>;
  /** R */
  responseLength: number;
  /** [B, R], 0 or 1; default: the attention mask of the last R columns */
  responseMask?: ArrayLike<number> | ArrayLike<bigint>;
  /** Each [B, R] (response tokens) or [B] (sequences). */
  columns?: Record<string, ArrayLike<unknown>>;
  /**
   * B. Otherwise taken from `responseMask` or a column; failing those, from where the attention mask can be cut into
   * valid rows, which is an error when several B fit.
   */
  batchSize?: number;
  /** Granularity of columns for which it does not follow from name or length. */
  granularity?: Record<string, Granularity>;
}

/** Its names. */
export const PADDED = [
  'inputIds',
  'attentionMask',
  'responseLength',
  'responseMask',
  'columns',
  'batchSize',
  'granularity',
] as const satisfies readonly (keyof PaddedInput)[];

/** What a typed array can hold in every version of Node. */
const MOST_ENTRIES = 2 ** 32;

export interface Unpadded {
  layout: Layout;
  tokens: Int32Array;
  responseMask: ArrayLike<unknown>;
  columns: Record<string, ArrayLike<unknown>>;
  granularity: Record<string, Granularity>;
}

const fail = (message: string): never => {
  throw new TroupeError('INVALID_ARGUMENT', `[batch] fromPadded: ${message}`);
};

/** Reads the padded arrays once; every row is checked against the padding rules. */
export function unpad(p: PaddedInput): Unpadded {
  const R = p.responseLength;
  checkCount('fromPadded: responseLength', R, 0);
  checkGranularity('fromPadded', p.granularity);
  if (p.responseMask !== undefined) arrayLength('fromPadded: responseMask', p.responseMask);
  if (p.columns !== undefined) checkRecord('fromPadded: columns', p.columns);
  for (const [name, value] of Object.entries(p.columns ?? {}))
    arrayLength(`fromPadded: columns.${name}`, value);
  const N = p.attentionMask.length;
  if (p.inputIds.length !== N)
    fail(`inputIds has ${p.inputIds.length} entries but attentionMask has ${N}: both are [B, P+R]`);
  const attended = bits('attentionMask', p.attentionMask);
  const B = batchSizeOf(p, attended);
  const S = N / B;
  if (!Number.isInteger(S) || S <= R) {
    fail(
      `expected inputIds of [B, P+R] with P >= 1, but ${N} entries are not ${B} rows of more than responseLength = ${R}`,
    );
  }
  const P = S - R;
  const promptLens = new Int32Array(B);
  const responseLens = new Int32Array(B);
  for (let b = 0; b < B; b++) {
    promptLens[b] = promptLength(attended, b, S, P);
    responseLens[b] = responseLength(attended, b, S, P);
  }
  const layout = makeLayout(promptLens, responseLens);
  const tokens = new Int32Array(layout.numTokens);
  for (let b = 0; b < B; b++) {
    const from = b * S + P - (promptLens[b] as number);
    copyTokens(
      p.inputIds,
      from,
      b * S + P + (responseLens[b] as number),
      tokens,
      layout.seqOffsets[b] as number,
      S,
    );
  }
  const { columns, granularity } = unpadColumns(p, layout, B, R);
  const responseMask =
    p.responseMask === undefined
      ? new Uint8Array(layout.numResponseTokens).fill(1)
      : unpadMask(p.responseMask, layout, B, R);
  return { layout, tokens, responseMask, columns, granularity };
}

const bits = (name: string, mask: ArrayLike<number> | ArrayLike<bigint>): Uint8Array =>
  toMask(`fromPadded: ${name}`, mask);

/** Attended tokens of the prompt part; they must be its last ones. */
function promptLength(attended: Uint8Array, b: number, S: number, P: number): number {
  const start = b * S;
  let c = 0;
  while (c < P && attended[start + c] === 0) c++;
  if (c === P) fail(`row ${b}: the prompt is empty (no attended token in the first ${P} columns)`);
  for (let i = c; i < P; i++) {
    if (attended[start + i] === 0)
      fail(`row ${b}, column ${i}: prompts are left-padded, but padding follows an attended token`);
  }
  return P - c;
}

function responseLength(attended: Uint8Array, b: number, S: number, P: number): number {
  const end = (b + 1) * S;
  let c = b * S + P;
  while (c < end && attended[c] === 1) c++;
  const length = c - b * S - P;
  for (let i = c; i < end; i++) {
    if (attended[i] === 1)
      fail(
        `row ${b}, column ${i - b * S}: responses are right-padded, but an attended token follows padding`,
      );
  }
  return length;
}

function copyTokens(
  ids: PaddedInput['inputIds'],
  from: number,
  to: number,
  out: Int32Array,
  at: number,
  S: number,
): void {
  if (types.isInt32Array(ids)) {
    const part = ids.subarray(from, to);
    out.set(part, at);
    if (part.every((id) => id >= 0)) return;
  }
  for (let i = from; i < to; i++) {
    const id = Number(ids[i]);
    if ((id | 0) !== id || id < 0) {
      fail(
        `inputIds, row ${Math.floor(i / S)}, column ${i % S}: expected a token id but got ${show(ids[i])}`,
      );
    }
    out[at + i - from] = id;
  }
}

function unpadMask(
  mask: ArrayLike<number> | ArrayLike<bigint>,
  layout: Layout,
  B: number,
  R: number,
): Uint8Array {
  if (mask.length !== B * R)
    fail(`responseMask: expected ${B} x ${R} = ${B * R} entries but got ${mask.length}`);
  const all = bits('responseMask', mask);
  const out = new Uint8Array(layout.numResponseTokens);
  for (let b = 0; b < B; b++) {
    const start = layout.responseOffsets[b] as number;
    const length = (layout.responseOffsets[b + 1] as number) - start;
    out.set(all.subarray(b * R, b * R + length), start);
    const outside = all.subarray(b * R + length, (b + 1) * R).indexOf(1);
    if (outside >= 0)
      fail(`responseMask, row ${b}, column ${length + outside}: is 1 where attentionMask is 0`);
  }
  return out;
}

function unpadColumns(
  p: PaddedInput,
  layout: Layout,
  B: number,
  R: number,
): { columns: Record<string, ArrayLike<unknown>>; granularity: Record<string, Granularity> } {
  const columns: [string, ArrayLike<unknown>][] = [];
  const granularity: [string, Granularity][] = [];
  for (const [name, value] of Object.entries(p.columns ?? {})) {
    if (name === 'tokens' || name === 'promptLens' || name === 'responseMask') {
      fail(`columns.${name}: comes from inputIds, attentionMask and responseMask; leave it out of columns`);
    }
    const kind = paddedGranularity(name, value, own(p.granularity, name), B, R);
    const expected = kind === 'sequence' ? B : B * R;
    if (value.length !== expected)
      fail(`columns.${name}: expected ${expected} entries (${kind}) but got ${value.length}`);
    columns.push([name, kind === 'sequence' ? value : gather(value, layout, R)]);
    if (knownGranularity(name) === null) granularity.push([name, kind]);
  }
  // A name may be that of something which every object has.
  return { columns: Object.fromEntries(columns), granularity: Object.fromEntries(granularity) };
}

function paddedGranularity(
  name: string,
  value: ArrayLike<unknown>,
  explicit: Granularity | undefined,
  B: number,
  R: number,
): Granularity {
  const kind = knownGranularity(name) ?? explicit;
  if (kind === 'token') return fail(`columns.${name}: one value per token is not part of the padded layout`);
  if (kind !== undefined) return kind;
  const numeric = ArrayBuffer.isView(value) || Array.from(value).every((x) => typeof x === 'number');
  if (value.length === B && !numeric) return 'sequence';
  if (value.length === B && value.length === B * R) {
    return fail(
      `columns.${name} has ${B} entries, which fits [B] and [B, R]: say which with granularity: { ${name}: 'sequence' }`,
    );
  }
  if (value.length === B * R) return 'response';
  if (value.length === B) return 'sequence';
  return fail(`columns.${name}: expected ${B * R} entries ([B, R]) or ${B} ([B]) but got ${value.length}`);
}

/** The attended positions of a [B, R] array. */
function gather(value: ArrayLike<unknown>, layout: Layout, R: number): ArrayLike<unknown> {
  if (ArrayBuffer.isView(value)) {
    const source = value as Float32Array;
    const out = new (source.constructor as Float32ArrayConstructor)(layout.numResponseTokens);
    for (let b = 0; b < layout.size; b++) {
      const start = layout.responseOffsets[b] as number;
      out.set(source.subarray(b * R, b * R + (layout.responseOffsets[b + 1] as number) - start), start);
    }
    return out;
  }
  const out: unknown[] = new Array(layout.numResponseTokens);
  for (let b = 0; b < layout.size; b++) {
    const start = layout.responseOffsets[b] as number;
    const length = (layout.responseOffsets[b + 1] as number) - start;
    for (let t = 0; t < length; t++) out[start + t] = value[b * R + t];
  }
  return out;
}

function batchSizeOf(p: PaddedInput, attended: Uint8Array): number {
  const R = p.responseLength;
  if (p.batchSize !== undefined) {
    checkCount('fromPadded: batchSize', p.batchSize, 1);
    return p.batchSize;
  }
  if (p.responseMask !== undefined && R > 0) return rowsOf('responseMask', p.responseMask.length, R);
  for (const [name, value] of Object.entries(p.columns ?? {})) {
    const kind = knownGranularity(name) ?? p.granularity?.[name];
    if (kind === 'sequence') return rowsOf(`columns.${name}`, value.length, 1);
    if (kind === 'response' && R > 0) return rowsOf(`columns.${name}`, value.length, R);
  }
  const fits = [];
  for (let S = R + 1; S <= attended.length; S++) {
    if (attended.length % S === 0 && validRows(attended, S, S - R)) fits.push(attended.length / S);
  }
  if (fits.length === 1) return fits[0] as number;
  return fail(
    fits.length === 0
      ? `attentionMask (${attended.length} entries) cannot be cut into rows of left-padded prompt and right-padded response ` +
          `of ${R}: pass batchSize to see which row is wrong`
      : `attentionMask (${attended.length} entries) fits batch sizes ${fits.join(', ')}: pass batchSize`,
  );
}

function rowsOf(name: string, length: number, width: number): number {
  const rows = length / width;
  if (!Number.isInteger(rows) || rows < 1)
    fail(`${name}: expected [B, ${width}] but ${length} entries are not a multiple of ${width}`);
  return rows;
}

/** Whether rows of width S all have their prompt's end attended and no hole. */
function validRows(attended: Uint8Array, S: number, P: number): boolean {
  for (let start = 0; start < attended.length; start += S) {
    if (attended[start + P - 1] === 0) return false;
    let c = 0;
    while (attended[start + c] === 0) c++;
    while (c < S && attended[start + c] === 1) c++;
    while (c < S) if (attended[start + c++] === 1) return false;
  }
  return true;
}

/** A response-token column as [B, R], right-padded with `padValue`; R: the longest response, or more. */
export function padColumn(
  layout: Layout,
  name: string,
  { granularity, data }: Column,
  responseLength: number | undefined,
  padValue: number,
): Float32Array {
  if (granularity !== 'response')
    refuse(`'${name}' has one value per ${granularity}, expected a response-token column`);
  const longest = layout.responseLens.reduce((a, b) => Math.max(a, b), 0);
  const R = responseLength ?? longest;
  checkCount('toPadded: responseLength', R, 0);
  if (R > Math.max(longest, RUN_LIMITS.tokens))
    refuse(`responseLength: expected at most ${RUN_LIMITS.tokens} tokens but got ${R}`);
  if (R < longest) refuse(`responseLength ${R} is below the longest response, ${longest} tokens`);
  if (typeof padValue !== 'number') refuse(`padValue: expected a number but got ${show(padValue)}`);
  if (layout.size * R > MOST_ENTRIES)
    refuse(`responseLength ${R}: expected at most 2^32 entries for ${layout.size} sequences`);
  const out = new Float32Array(layout.size * R).fill(padValue);
  const { responseOffsets: offsets } = layout;
  const source = data as Float32Array;
  for (let i = 0; i < layout.size; i++) out.set(source.subarray(offsets[i], offsets[i + 1]), i * R);
  return out;
}

function refuse(message: string): never {
  throw new TroupeError('INVALID_ARGUMENT', `[batch] toPadded: ${message}`);
}
