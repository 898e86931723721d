// The likeliest tokens of each position of a batch: columns of one array per sequence, and one array for the core.
import { types } from 'node:util';
import type { Batch } from '../batch/batch';
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
