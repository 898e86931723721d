import type { OffloadOptions } from '../actor/offload_options';

/** verl's keys; a role that does not learn has some of them. */
interface OffloadKeys {
  param_offload: boolean;
  optimizer_offload?: boolean;
  grad_offload?: boolean;
  offload_policy?: boolean;
}

/** What begins on the host. offload_policy means everything, as FSDP2's CPUOffloadPolicy. */
export function offloadOptions(fsdp: OffloadKeys): Required<OffloadOptions> {
  const all = fsdp.offload_policy === true;
  return {
    params: all || fsdp.param_offload,
    grads: all || fsdp.grad_offload === true,
    optimizer: all || fsdp.optimizer_offload === true,
  };
}
