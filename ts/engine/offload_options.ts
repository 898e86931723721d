import { checkOptionNames, flagOption } from '../base/check_options';
import type { NativeStateKinds } from '../native/bridge';

/**
 * Parts of an engine's state. On the host they are in pinned memory and come to the GPU group by group (a block, the embeddings,
 * the head), for the time of their use. docs/distributed.md says what each saves; on a CPU there is no other memory.
 */
export interface OffloadOptions {
  /** Weights; of what is trained in bfloat16 the masters and the copy that is computed with. */
  params?: boolean;
  /** Gradients of the optimiser. */
  grads?: boolean;
  /** Both moments of AdamW. */
  optimizer?: boolean;
}

const KEYS = ['params', 'grads', 'optimizer'];

/** `missing`: what a part that is not named is. Throws INVALID_ARGUMENT. */
export function resolveOffload(where: string, o: OffloadOptions, missing: boolean): NativeStateKinds {
  checkOptionNames(where, o, KEYS);
  return {
    parameters: flagOption(where, 'params', o.params, missing),
    gradients: flagOption(where, 'grads', o.grads, missing),
    moments: flagOption(where, 'optimizer', o.optimizer, missing),
  };
}
