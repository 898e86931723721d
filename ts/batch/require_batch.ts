// What takes a batch is often called from JavaScript, where anything may come.
import { badOption } from '../base/check_options';
import { show } from '../base/text';
import { Batch } from './batch';

/** @throws TroupeError INVALID_ARGUMENT */
export function requireBatch(where: string, value: unknown): asserts value is Batch {
  if (!(value instanceof Batch))
    throw badOption(where, `expected a Batch (Batch.fromSequences makes one) but got ${show(value)}`);
}
