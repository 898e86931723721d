// Which experts the tokens of a batch went to: a column of one array per sequence, and one array for the core.
import { types } from 'node:util';
import { badOption } from '../base/check_options';
import type { Batch } from '../batch/batch';
import { TroupeError } from '../errors';
import type { NativeModelConfig } from '../native/bridge';
import { runsOf } from './batch_part';

/** Name of the column. */
export const ROUTED_EXPERTS = 'routedExperts';

/** Numbers of experts that a byte counts; of more, each choice has two (little-endian). */
const BYTE_EXPERTS = 256;

/** Bytes of one token: one choice for each of topK, in each layer with experts. 0 for a model without experts. */
export function routingBytes({ moe, moeLayers }: NativeModelConfig): number {
  if (moe === null) return 0;
  const layers = moeLayers.filter(Boolean).length;
  return layers * moe.topK * (moe.numExperts > BYTE_EXPERTS ? 2 : 1);
}

/** @throws TroupeError for a model without experts, or a batch without the column */
export function checkReplay(where: string, batch: Batch, model: NativeModelConfig): void {
  expertBytes(where, model);
  if (!batch.has(ROUTED_EXPERTS))
    throw badOption(where, `replayExperts: the batch has no column ${ROUTED_EXPERTS}: record one first`);
}

/** The column of a batch, or of its sequences `indices`, as the core takes it: [ΣL * routingBytes]. */
export function joinedExperts(
  where: string,
  batch: Batch,
  model: NativeModelConfig,
  indices: readonly number[] = Array.from({ length: batch.size }, (_, i) => i),
): Uint8Array {
  checkReplay(where, batch, model);
  const bytes = routingBytes(model);
  const column = batch.get(ROUTED_EXPERTS);
  const total = indices.reduce((sum, i) => sum + (batch.sequenceLens[i] as number), 0);
  const joined = new Uint8Array(total * bytes);
  let at = 0;
  for (const i of indices) {
    const own = column[i];
    const expected = (batch.sequenceLens[i] as number) * bytes;
    if (!(types.isUint8Array(own) && own.length === expected))
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[${where}] column '${ROUTED_EXPERTS}', sequence ${i}: expected a Uint8Array of ${expected} (${batch.sequenceLens[i]} tokens x ` +
          `${bytes} bytes) but got ${ArrayBuffer.isView(own) ? `${own.constructor.name} of ${own.byteLength}` : typeof own}`,
      );
    joined.set(own, at);
    at += expected;
  }
  return joined;
}

/** Where what a rank has recorded of the sequences `indices`, ascending, lies among that of the whole batch. */
export function expertPlaces(
  { seqOffsets }: Batch,
  indices: readonly number[],
  all: Uint8Array,
  model: NativeModelConfig,
): Uint8Array[] {
  const bytes = routingBytes(model);
  const at = (sequence: number): number => (seqOffsets[sequence] as number) * bytes;
  return runsOf(indices).map(([first, end]) => all.subarray(at(first), at(end)));
}

/** What has been recorded of a batch, one array per sequence. */
export function splitExperts(batch: Batch, all: Uint8Array, model: NativeModelConfig): Uint8Array[] {
  return Array.from({ length: batch.size }, (_, i) => expertPlaces(batch, [i], all, model)[0] as Uint8Array);
}

/** @throws TroupeError for a model without experts */
export function expertBytes(where: string, model: NativeModelConfig): number {
  const bytes = routingBytes(model);
  if (bytes === 0)
    throw badOption(where, `there are no routed experts: this ${model.family} model has no experts`);
  return bytes;
}
