import { badOption } from '../base/check_options';
import { show } from '../base/text';
import type { Batch } from '../batch/batch';
import { offsetsOf } from '../batch/layout';
import { firstWithPrompt } from '../batch/prompts';
import type { NativeMiniBatches, NativeTokenBatch } from '../native/bridge';
import { BatchPart, type SentBatch } from './batch_part';
import { imageBatch } from './image_batch';
import { type RankPart, rankParts } from './rank_parts';

/** The part of an update that one rank computes (with Ulysses: one group of ranks). */
export interface UpdateShard {
  batch: SentBatch;
  /** Of its sequences in the whole batch. */
  indices: number[];
  mini: NativeMiniBatches;
  /** Loss tokens of each mini-batch that are this rank's. */
  tokens: number[];
  /** [B] of this rank; null: all. */
  hasGradient: Uint8Array | null;
}

/** The tokens of a batch as the engine takes them. */
export function tokenBatch(batch: SentBatch, routedExperts: Uint8Array | null = null): NativeTokenBatch {
  return {
    tokens: batch.get('tokens'),
    seqOffsets: batch.seqOffsets,
    promptLens: batch.promptLens,
    routedExperts,
    images: imageBatch(batch),
  };
}

/** The sequences that one rank computes, and where they stand in the whole batch. */
export interface RankShard {
  tokens: NativeTokenBatch;
  /** Ascending. */
  indices: number[];
}

/** Indices of the sequences of each rank (or group of ranks): see {@link rankParts}. */
export function indicesByRank(batch: Batch, worldSize: number): number[][] {
  return balanced(batch, 0, batch.size, worldSize);
}

/** The tokens of a batch, one part per rank, balanced by work; with fewer sequences than ranks some are empty. They are sent from where they lie. */
export function shardByRank(batch: Batch, worldSize: number): RankShard[] {
  return indicesByRank(batch, worldSize).map((indices) => ({
    tokens: tokenBatch(worldSize === 1 ? batch : new BatchPart(batch, indices)),
    indices,
  }));
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
  prompts: Int32Array | null = null,
  hasGradient: Uint8Array | null = null,
): number[][] {
  const indices = Array.from({ length: end - start }, (_, i) => start + i);
  if (worldSize === 1) return [indices];
  const same = prompts ?? firstWithPrompt(batch);
  const backward = hasGradient === null ? null : propagated(batch, indices, same, hasGradient);
  const parts = (kind: number): RankPart[] =>
    rankParts(
      batch,
      backward === null ? indices : indices.filter((_, k) => backward[k] === kind),
      worldSize,
      same,
    );
  const byRank = parts(1);
  if (backward === null) return byRank.map((part) => part.indices);
  const forward = parts(0).sort((a, b) => a.work - b.work);
  const busiestFirst = byRank
    .map((part, rank) => ({ rank, work: part.work }))
    .sort((a, b) => b.work - a.work);
  const both = byRank.map((part) => part.indices);
  for (const [i, { rank }] of busiestFirst.entries())
    both[rank] = [...(both[rank] as number[]), ...(forward[i] as RankPart).indices].sort((a, b) => a - b);
  return both;
}

/**
 * Which of the sequences `indices` the core propagates backwards (1) if they are on one rank: those with a gradient, and others
 * with their prompt where that costs less than to compute the prompt once more (native/batch/packing.h, `propagation`).
 */
export function propagated(
  batch: Batch,
  indices: readonly number[],
  firstWithPrompt: Int32Array,
  hasGradient: Uint8Array,
): Uint8Array {
  const { promptLens, responseLens } = batch;
  const withGradient = new Set<number>();
  const still = new Map<number, number>(); // response tokens without a gradient
  for (const i of indices) {
    const prompt = firstWithPrompt[i] as number;
    if (hasGradient[i] !== 0) withGradient.add(prompt);
    else still.set(prompt, (still.get(prompt) ?? 0) + (responseLens[i] as number));
  }
  return Uint8Array.from(indices, (i) => {
    const prompt = firstWithPrompt[i] as number;
    const together = withGradient.has(prompt) && (promptLens[i] as number) >= 2 * (still.get(prompt) ?? 0);
    return hasGradient[i] !== 0 || together ? 1 : 0;
  });
}

/** Sequences of each mini-batch from those of all alike, which must divide the batch, or of each one, which add up to it; default: all in one. */
export function checkMiniBatches(
  where: string,
  batch: Batch,
  size: number | readonly number[] | undefined,
): number[] {
  if (batch.size === 0) throw badOption(where, 'the batch has no sequence');
  if (Array.isArray(size)) return checkSizes(where, batch, size);
  const miniSize = (size ?? batch.size) as number;
  if (!Number.isInteger(miniSize) || miniSize < 1)
    throw badOption(where, `miniBatchSize: expected an integer >= 1 but got ${show(miniSize)}`);
  if (batch.size % miniSize !== 0) {
    throw badOption(
      where,
      `miniBatchSize: ${batch.size} sequences do not divide into mini-batches of ${miniSize} (remainder ${batch.size % miniSize})`,
    );
  }
  return new Array<number>(batch.size / miniSize).fill(miniSize);
}

function checkSizes(where: string, batch: Batch, sizes: readonly unknown[]): number[] {
  const wrong = sizes.findIndex((size) => !Number.isInteger(size) || (size as number) < 1);
  if (wrong >= 0) {
    throw badOption(where, `miniBatchSize[${wrong}]: expected an integer >= 1 but got ${show(sizes[wrong])}`);
  }
  const sum = (sizes as number[]).reduce((a, b) => a + b, 0);
  if (sum !== batch.size) {
    throw badOption(
      where,
      `miniBatchSize: expected sizes that add up to the ${batch.size} sequences of the batch but they make ${sum}`,
    );
  }
  return [...(sizes as number[])];
}

/**
 * Cuts a batch into mini-batches of so many sequences each (see {@link checkMiniBatches}), in order, and each of those over the ranks. The counts by which
 * losses are divided are those of the whole mini-batch, so a result depends neither on ranks nor on micro-batches.
 * `hasGradient` [B]: see gradientSequences.
 */
export function planUpdate(
  batch: Batch,
  miniSizes: readonly number[],
  epochs: number,
  worldSize: number,
  hasGradient: Uint8Array | null = null,
): UpdateShard[] {
  const starts = offsetsOf(miniSizes);
  const lossTokens = maskSums(batch);
  const prompts = worldSize === 1 ? null : firstWithPrompt(batch);
  const globalTokens: number[] = [];
  const parts = miniSizes.map((size, m) => {
    const start = starts[m] as number;
    globalTokens.push(lossTokens.subarray(start, start + size).reduce((sum, count) => sum + count, 0));
    return balanced(batch, start, start + size, worldSize, prompts, hasGradient);
  });
  return Array.from({ length: worldSize }, (_, rank) => {
    const own = parts.map((byRank) => byRank[rank] as number[]);
    const indices = own.flat();
    return {
      batch: new BatchPart(batch, indices),
      indices,
      mini: {
        offsets: [...offsetsOf(own.map((indices) => indices.length))],
        globalTokens,
        globalSequences: [...miniSizes],
        epochs,
      },
      hasGradient: hasGradient && Uint8Array.from(indices, (i) => hasGradient[i] as number),
      tokens: own.map((indices) => indices.reduce((sum, i) => sum + (lossTokens[i] as number), 0)),
    };
  });
}

/** [B] loss tokens of each sequence. */
function maskSums(batch: Batch): Int32Array {
  const mask = batch.get('responseMask');
  // A mask of ones, which most batches have, is known by a search for a byte, ten times as fast as the sums.
  if (!Buffer.from(mask.buffer, mask.byteOffset, mask.length).includes(0)) return batch.responseLens;
  const { responseOffsets } = batch;
  const sums = new Int32Array(batch.size);
  for (let i = 0; i < batch.size; i++) {
    const end = responseOffsets[i + 1] as number;
    let sum = 0;
    for (let t = responseOffsets[i] as number; t < end; t++) sum += mask[t] as number;
    sums[i] = sum;
  }
  return sums;
}
