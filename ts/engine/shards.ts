import { badOption } from '../base/check_options';
import type { Batch } from '../batch/batch';
import { offsetsOf } from '../batch/layout';
import { karmarkarKarp } from '../batch/partition';
import type { NativeMiniBatches, NativeTokenBatch } from '../native/bridge';

/** The part of an update that one rank computes (with Ulysses: one group of ranks). */
export interface UpdateShard {
  batch: Batch;
  mini: NativeMiniBatches;
  /** Loss tokens of each mini-batch that are this rank's. */
  tokens: number[];
  /** [B] of this rank; null: all. */
  hasGradient: Uint8Array | null;
}

/** The tokens of a batch as the engine takes them. */
export function tokenBatch(batch: Batch): NativeTokenBatch {
  return { tokens: batch.get('tokens'), seqOffsets: batch.seqOffsets, promptLens: batch.promptLens };
}

/** The sequences that one rank computes, and where they stand in the whole batch. */
export interface RankShard {
  batch: Batch;
  indices: number[];
}

/** One part per rank (or group of ranks), balanced by tokens; with fewer sequences than ranks some are empty. */
export function shardByRank(batch: Batch, worldSize: number): RankShard[] {
  return balanced(batch, 0, batch.size, worldSize).map((indices) => ({
    batch: worldSize === 1 ? batch : batch.take(indices),
    indices,
  }));
}

/** Contiguous parts of equally many sequences, one per rank, whose results in rank order are those of the whole. */
export function contiguousByRank(batch: Batch, worldSize: number): Batch[] {
  if (worldSize === 1) return [batch];
  const at = (rank: number): number => Math.floor((batch.size * rank) / worldSize);
  return Array.from({ length: worldSize }, (_, rank) => batch.slice(at(rank), at(rank + 1)));
}

/** Puts per-response-token results of `shardByRank` back in the order of the batch. */
export function joinFloats(
  batch: Batch,
  shards: readonly RankShard[],
  parts: readonly Float32Array[],
): Float32Array {
  const first = parts[0];
  if (parts.length === 1 && first !== undefined) return first;
  const out = new Float32Array(batch.numResponseTokens);
  for (const [rank, { batch: own, indices }] of shards.entries()) {
    const part = parts[rank] as Float32Array;
    for (const [i, index] of indices.entries()) {
      const values = part.subarray(own.responseOffsets[i], own.responseOffsets[i + 1]);
      out.set(values, batch.responseOffsets[index] as number);
    }
  }
  return out;
}

/**
 * Sequences [start, end) in one set per rank, ascending in each. Ranks that share a model run the passes of sequences with a gradient
 * together, and then those of the others: each kind is balanced on its own, and who has most of one gets least of the other.
 */
function balanced(
  batch: Batch,
  start: number,
  end: number,
  worldSize: number,
  hasGradient: Uint8Array | null = null,
): number[][] {
  const indices = Array.from({ length: end - start }, (_, i) => start + i);
  const backward = partition(
    batch,
    indices.filter((i) => hasGradient?.[i] !== 0),
    worldSize,
  );
  const forward = partition(
    batch,
    indices.filter((i) => hasGradient?.[i] === 0),
    worldSize,
  );
  const tokens = (part: number[]): number =>
    part.reduce((sum, i) => sum + (batch.sequenceLens[i] as number), 0);
  forward.sort((a, b) => tokens(a) - tokens(b));
  for (const part of [...backward].sort((a, b) => tokens(b) - tokens(a)))
    part.push(...(forward.shift() as number[]));
  return backward.map((part) => part.sort((a, b) => a - b));
}

/** One set per rank, balanced by tokens. */
function partition(batch: Batch, indices: number[], worldSize: number): number[][] {
  if (worldSize === 1) return [indices];
  if (indices.length <= worldSize)
    return Array.from({ length: worldSize }, (_, rank) => indices.slice(rank, rank + 1));
  const lengths = indices.map((i) => batch.sequenceLens[i] as number);
  return karmarkarKarp(lengths, worldSize, false).map((part) => part.map((i) => indices[i] as number));
}

/**
 * Cuts a batch into mini-batches of `size` sequences in order and each of those over the ranks. The counts by which losses
 * are divided are those of the whole mini-batch, so a result depends neither on ranks nor on micro-batches.
 * `hasGradient` [B]: see gradientSequences.
 */
export function planUpdate(
  where: string,
  batch: Batch,
  size: number | undefined,
  epochs: number,
  worldSize: number,
  hasGradient: Uint8Array | null = null,
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
  const parts = starts.map((start) => balanced(batch, start, start + miniSize, worldSize, hasGradient));
  return Array.from({ length: worldSize }, (_, rank) => {
    const own = parts.map((byRank) => byRank[rank] as number[]);
    return {
      batch: worldSize === 1 ? batch : batch.take(own.flat()),
      mini: {
        offsets: [...offsetsOf(own.map((indices) => indices.length))],
        globalTokens,
        globalSequences,
        epochs,
      },
      hasGradient: hasGradient && Uint8Array.from(own.flat(), (i) => hasGradient[i] as number),
      tokens: own.map((indices) => indices.reduce((sum, i) => sum + maskSum(batch, i, i + 1), 0)),
    };
  });
}

function maskSum(batch: Batch, start: number, end: number): number {
  const mask = batch.get('responseMask');
  let sum = 0;
  for (let t = batch.responseOffsets[start] as number; t < (batch.responseOffsets[end] as number); t++)
    sum += mask[t] as number;
  return sum;
}
