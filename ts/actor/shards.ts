import type { Batch } from '../batch/batch';
import { offsetsOf } from '../batch/layout';
import type { NativeMiniBatches, NativeTokenBatch } from '../native/bridge';
import { badOption } from './check_options';

/** The part of an update that one rank computes. */
export interface UpdateShard {
  batch: Batch;
  mini: NativeMiniBatches;
}

/** The tokens of a batch as the engine takes them. */
export function tokenBatch(batch: Batch): NativeTokenBatch {
  return { tokens: batch.get('tokens'), seqOffsets: batch.seqOffsets, promptLens: batch.promptLens };
}

/** Contiguous parts, one per rank, whose results in rank order are those of the whole. */
export function shardByRank(batch: Batch, worldSize: number): Batch[] {
  if (worldSize === 1) return [batch];
  return Array.from({ length: worldSize }, (_, rank) => {
    const [start, end] = rankRange(0, batch.size, rank, worldSize);
    return batch.slice(start, end);
  });
}

/** Puts per-response-token results of `shardByRank` together again. */
export function joinFloats(parts: readonly Float32Array[]): Float32Array {
  const first = parts[0];
  if (parts.length === 1 && first !== undefined) return first;
  const out = new Float32Array(parts.reduce((n, part) => n + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/**
 * Cuts a batch into mini-batches of `size` sequences in order and each of those over the ranks. The counts by which losses
 * are divided are those of the whole mini-batch, so a result depends neither on ranks nor on micro-batches.
 */
export function planUpdate(
  where: string,
  batch: Batch,
  size: number | undefined,
  epochs: number,
  worldSize: number,
): UpdateShard[] {
  const miniSize = size ?? batch.size;
  if (batch.size === 0) throw badOption(where, 'the batch has no sequence');
  if (!Number.isInteger(miniSize) || miniSize < 1)
    throw badOption(where, `miniBatchSize: expected an integer >= 1 but got ${miniSize}`);
  if (batch.size % miniSize !== 0) {
    throw badOption(
      where,
      `miniBatchSize: ${batch.size} sequences do not divide into mini-batches of ${miniSize} (remainder ${batch.size % miniSize})`,
    );
  }
  const starts = Array.from({ length: batch.size / miniSize }, (_, m) => m * miniSize);
  const globalTokens = starts.map((start) => maskSum(batch, start, start + miniSize));
  const globalSequences = starts.map(() => miniSize);
  return Array.from({ length: worldSize }, (_, rank) => {
    const ranges = starts.map((start) => rankRange(start, start + miniSize, rank, worldSize));
    const indices = ranges.flatMap(([a, b]) => Array.from({ length: b - a }, (_, i) => a + i));
    return {
      batch: worldSize === 1 ? batch : batch.take(indices),
      mini: { offsets: [...offsetsOf(ranges.map(([a, b]) => b - a))], globalTokens, globalSequences, epochs },
    };
  });
}

function rankRange(start: number, end: number, rank: number, worldSize: number): [number, number] {
  const at = (r: number): number => start + Math.floor(((end - start) * r) / worldSize);
  return [at(rank), at(rank + 1)];
}

function maskSum(batch: Batch, start: number, end: number): number {
  const mask = batch.get('responseMask');
  let sum = 0;
  for (let t = batch.responseOffsets[start] as number; t < (batch.responseOffsets[end] as number); t++)
    sum += mask[t] as number;
  return sum;
}
