// The likeliest tokens of each position of a batch: columns of one array per sequence, and one array for the core.
import { types } from 'node:util';
import { badOption } from '../base/check_options';
import type { Batch } from '../batch/batch';
import { greatestId } from '../batch/greatest_id';
import type { LoadedModel } from '../checkpoint/model_dir';
import { TroupeError } from '../errors';
import { runsOf, type SentBatch } from './batch_part';

type Values = Float32Array | Int32Array;

/** Where the responses of the sequences `indices`, ascending, lie in an array [ΣR * k] of the whole batch. */
export function topPlaces<A extends Values>(
  { responseOffsets }: Batch,
  indices: readonly number[],
  all: A,
  k: number,
): A[] {
  const at = (sequence: number): number => (responseOffsets[sequence] as number) * k;
  return runsOf(indices).map(([first, end]) => all.subarray(at(first), at(end)) as A);
}

/** [ΣR * k] of a batch, one array per sequence. */
export function splitTop<A extends Values>(batch: Batch, all: A, k: number): A[] {
  return Array.from({ length: batch.size }, (_, i) => topPlaces(batch, [i], all, k)[0] as A);
}

/** Throws INVALID_ARGUMENT where a teacher's log-probs are no numbers. Minus infinity passes: it is that of a probability of 0. */
export function checkTopLogProbs(where: string, batch: Batch): void {
  const column = batch.get('teacherTopLogProbs') as unknown as readonly unknown[];
  for (const [i, own] of column.entries()) {
    // Arrays of another kind are refused where they are joined.
    if (!types.isFloat32Array(own)) continue;
    const at = own.findIndex((value) => Number.isNaN(value) || value === Number.POSITIVE_INFINITY);
    if (at < 0) continue;
    throw badOption(
      where,
      `column 'teacherTopLogProbs', sequence ${i}: expected log-probs, got ${own[at]} at place ${at}: ask the teacher anew`,
    );
  }
}

/** Throws INVALID_ARGUMENT where a teacher with a larger vocabulary has found likely what the model has no logit for. */
export function checkTopIds(
  where: string,
  batch: Batch,
  { dir, config: { vocabSize } }: Pick<LoadedModel, 'dir' | 'config'>,
): void {
  const column = batch.get('teacherTopIds') as unknown as readonly unknown[];
  for (const [i, ids] of column.entries()) {
    // Arrays of another kind are refused where they are joined.
    if (!types.isInt32Array(ids) || greatestId(ids) < vocabSize) continue;
    throw badOption(
      where,
      `column 'teacherTopIds', sequence ${i}: token id ${ids.find((id) => id < 0 || id >= vocabSize)} is outside the vocabulary of the model in ` +
        `${dir} (0 to ${vocabSize - 1}): the teacher's is larger; ask it for fewer tokens (topk), or take models with vocabularies of one size`,
    );
  }
}

/** A column of one array per sequence as the core takes it: [ΣR * k]. @throws TroupeError naming the sequence whose array has another length */
export function joinedTop<A extends Values>(
  where: string,
  batch: SentBatch,
  name: 'teacherTopLogProbs' | 'teacherTopIds',
  k: number,
): A {
  const column = batch.get(name) as unknown as readonly A[];
  const isOne = name === 'teacherTopIds' ? types.isInt32Array : types.isFloat32Array;
  const lengths = Array.from({ length: batch.size }, (_, i) => {
    const length = (batch.seqOffsets[i + 1] as number) - (batch.seqOffsets[i] as number);
    return (length - (batch.promptLens[i] as number)) * k;
  });
  const total = lengths.reduce((sum, length) => sum + length, 0);
  const joined = (name === 'teacherTopIds' ? new Int32Array(total) : new Float32Array(total)) as A;
  let at = 0;
  for (const [i, expected] of lengths.entries()) {
    const own = column[i];
    if (!isOne(own) || own.length !== expected)
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[${where}] column '${name}', sequence ${i}: expected ${joined.constructor.name} of ${expected} (${expected / k} response tokens x ${k}) ` +
          `but got ${ArrayBuffer.isView(own) ? `${own.constructor.name} of ${(own as A).length}` : typeof own}`,
      );
    joined.set(own, at);
    at += expected;
  }
  return joined;
}
