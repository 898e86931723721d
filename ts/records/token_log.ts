// tokens/{step}.jsonl: what the trainer knows of every token of a few responses.

import { writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { discard } from '../base/atomic_file';
import { makeDirectories } from '../base/make_directories';
import type { Batch } from '../batch/batch';
import type { TokenRecord } from './schema';
import { tokenTexts } from './token_texts';

/** Column of a batch -> array of a record. */
const COLUMNS = {
  rolloutLogProbs: 'rollout_log_probs',
  oldLogProbs: 'old_log_probs',
  refLogProbs: 'ref_log_probs',
  newLogProbs: 'new_log_probs',
  entropy: 'entropy',
  advantages: 'advantages',
  returns: 'returns',
  values: 'values',
} as const;

/** Which rows of so many are written down: `count`, evenly spread, always the same ones. */
export function spreadRows(rows: number, count: number): number[] {
  const stride = Math.max(1, Math.floor(rows / Math.max(count, 1)));
  const chosen: number[] = [];
  for (let i = 0; i < rows && chosen.length < count; i += stride) chosen.push(i);
  return chosen;
}

/** Five digits are more than a colour shows, and a third of the bytes. */
function rounded(value: number): number | null {
  return Number.isFinite(value) ? Number(value.toPrecision(5)) : null;
}

/**
 * The records of a batch of a few responses, of at most `limit` tokens each. `rows`: where they were in the batch of the step, whose prompts
 * are `inputs`; `decode`: of token ids, special tokens included.
 */
export function tokenRecords(
  step: number,
  batch: Batch,
  rows: readonly number[],
  inputs: readonly string[],
  limit: number,
  decode: (tokens: readonly number[]) => string,
): TokenRecord[] {
  return rows.map((index, row) => {
    const length = batch.responseLens[row] as number;
    const kept = Math.min(length, limit);
    const part = (name: string): (number | null)[] =>
      Array.from((batch.row(name, row) as Float32Array).subarray(0, kept), rounded);
    const ids = Array.from(batch.response(row).subarray(0, kept));
    const arrays = Object.entries(COLUMNS).flatMap(([column, key]) =>
      batch.has(column) && batch.granularity(column) === 'response' ? [[key, part(column)] as const] : [],
    );
    const score = batch.has('score') ? Number(batch.row('score', row)) : Number.NaN;
    return {
      step,
      index,
      input: inputs[index] as string,
      score: Number.isFinite(score) ? score : null,
      ...(batch.has('dataSource') ? { data_source: String(batch.row('dataSource', row)) } : {}),
      length,
      tokens: tokenTexts(ids, decode),
      ids,
      mask: Array.from((batch.row('responseMask', row) as Uint8Array).subarray(0, kept), Number),
      ...Object.fromEntries(arrays),
    };
  });
}

/** Writes them to `directory`/tokens/{step}.jsonl. Throws what the disk says. */
export function writeTokens(directory: string, step: number, records: readonly TokenRecord[]): void {
  const path = join(directory, 'tokens', `${step}.jsonl`);
  makeDirectories(resolve(directory, 'tokens'));
  try {
    writeFileSync(path, records.map((record) => `${JSON.stringify(record)}\n`).join(''));
  } catch (error) {
    discard(path);
    throw error;
  }
}
