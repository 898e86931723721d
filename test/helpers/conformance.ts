import path from 'node:path';
import { Batch } from '../../ts/batch/batch';
import { integers, type TestTensor } from './safetensors';

/** Where the conformance tests compute; scripts/gpu-check.sh sets it. Always in float32, also on a GPU. */
export const TEST_DEVICE = process.env['TROUPE_TEST_DEVICE'] === 'cuda' ? 'cuda' : 'cpu';

export const CONFORMANCE = path.join(__dirname, '..', 'fixtures', 'conformance');

/** A verl-layout batch ([B, P+R], prompts left-padded, responses right-padded) as a Batch. */
export function batchOf(
  tensors: Record<string, TestTensor>,
  prefix = '',
  columns: Record<string, ArrayLike<number>> = {},
): { batch: Batch; responseLength: number } {
  const responseLength = tensors[`${prefix}responses`]?.shape[1] ?? 0;
  const batch = Batch.fromPadded({
    inputIds: integers(tensors, `${prefix}input_ids`),
    attentionMask: Array.from(integers(tensors, `${prefix}attention_mask`), Number),
    responseLength,
    responseMask: Array.from(integers(tensors, `${prefix}response_mask`), Number),
    columns,
  });
  return { batch, responseLength };
}
