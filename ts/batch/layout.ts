import { types } from 'node:util';
import { TroupeError } from '../errors';
import type { Column, ColumnData, Granularity } from './columns';

/** Where each sequence lies in the concatenated columns. */
export interface Layout {
  readonly size: number; // B
  readonly numTokens: number; // ΣL
  readonly numResponseTokens: number; // ΣR
  readonly seqOffsets: Int32Array; // [B+1] over tokens
  readonly promptLens: Int32Array; // [B]
  readonly responseLens: Int32Array; // [B]
  readonly sequenceLens: Int32Array; // [B]
  readonly responseOffsets: Int32Array; // [B+1] over response tokens
}

/** Offsets from lengths: [B] -> [B+1]. */
export function offsetsOf(lengths: ArrayLike<number>): Int32Array {
  const offsets = new Int32Array(lengths.length + 1);
  let total = 0;
  for (let i = 0; i < lengths.length; i++) {
    total += lengths[i] as number;
    if (total > 0x7fffffff) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[batch] a batch holds at most 2^31-1 tokens, exceeded at sequence ${i} of ${lengths.length}: take fewer sequences at a time ` +
          '(data.train_batch_size, data.val_batch_size, rollout.n) or shorter ones (data.max_response_length)',
      );
    }
    offsets[i + 1] = total;
  }
  return offsets;
}

export function makeLayout(promptLens: Int32Array, responseLens: Int32Array): Layout {
  const size = promptLens.length;
  const sequenceLens = new Int32Array(size);
  for (let i = 0; i < size; i++) {
    if ((promptLens[i] as number) < 1) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[batch] sequence ${i}: expected a prompt of at least one token but ${promptLens[i] === 0 ? 'it is empty' : `its length is ${promptLens[i]}`}`,
      );
    }
    if ((responseLens[i] as number) < 0) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[batch] sequence ${i}: expected a response of 0 tokens or more but its length is ${responseLens[i]}`,
      );
    }
    sequenceLens[i] = (promptLens[i] as number) + (responseLens[i] as number);
  }
  const seqOffsets = offsetsOf(sequenceLens);
  const responseOffsets = offsetsOf(responseLens);
  return {
    size,
    numTokens: seqOffsets[size] as number,
    numResponseTokens: responseOffsets[size] as number,
    seqOffsets,
    promptLens,
    responseLens,
    sequenceLens,
    responseOffsets,
  };
}

/** The layout of the sequences `indices` of `layout`, in that order. */
export function takeLayout(layout: Layout, indices: Int32Array): Layout {
  const prompts = new Int32Array(indices.length);
  const responses = new Int32Array(indices.length);
  for (let j = 0; j < indices.length; j++) {
    const i = indices[j] as number;
    prompts[j] = layout.promptLens[i] as number;
    responses[j] = layout.responseLens[i] as number;
  }
  return makeLayout(prompts, responses);
}

export function offsetsFor(layout: Layout, granularity: Granularity): Int32Array | null {
  return granularity === 'token'
    ? layout.seqOffsets
    : granularity === 'response'
      ? layout.responseOffsets
      : null;
}

/** Copies the rows of the sequences `indices`; neighbours in the source move as one block. */
export function takeColumn(column: Column, from: Layout, to: Layout, indices: Int32Array): Column {
  const offsets = offsetsFor(from, column.granularity);
  if (offsets === null)
    return { granularity: column.granularity, data: takeSequenceData(column.data, indices) };
  const total = column.granularity === 'token' ? to.numTokens : to.numResponseTokens;
  const source = column.data as Float32Array;
  const data = emptyLike(source, total) as Float32Array;
  let at = 0;
  for (let j = 0; j < indices.length; ) {
    const first = indices[j] as number;
    let run = 1;
    while (j + run < indices.length && indices[j + run] === first + run) run++;
    const start = offsets[first] as number;
    const end = offsets[first + run] as number;
    data.set(source.subarray(start, end), at);
    at += end - start;
    j += run;
  }
  return { granularity: column.granularity, data };
}

function takeSequenceData(source: ColumnData, indices: Int32Array): ColumnData {
  const data = emptyLike(source, indices.length);
  for (let j = 0; j < indices.length; j++) data[j] = source[indices[j] as number] as never;
  return data;
}

function emptyLike(source: ColumnData, length: number): ColumnData {
  // Not by instanceof: a column that was taken over may come from another realm.
  if (types.isFloat32Array(source)) return new Float32Array(length);
  if (types.isInt32Array(source)) return new Int32Array(length);
  if (types.isUint8Array(source)) return new Uint8Array(length);
  return new Array(length);
}

/** The columns of one name from several batches, end to end. Mixed numeric types become float32 (per token) or a plain array. */
export function concatColumns(columns: readonly Column[]): Column {
  const first = columns[0] as Column;
  let total = 0;
  let same = true;
  for (const column of columns) {
    total += column.data.length;
    same &&= column.data.constructor === first.data.constructor;
  }
  let data: ColumnData;
  if (same) data = emptyLike(first.data, total);
  else data = first.granularity === 'sequence' ? new Array(total) : new Float32Array(total);
  let at = 0;
  for (const column of columns) {
    if (Array.isArray(data)) for (let i = 0; i < column.data.length; i++) data[at + i] = column.data[i];
    else data.set(column.data as Float32Array, at);
    at += column.data.length;
  }
  return { granularity: first.granularity, data };
}
