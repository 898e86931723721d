import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import type { WorkerGroupOptions } from '../controller/group_options';

/** How long workers may take for what, in seconds -> milliseconds. */
export function workerTimeouts(
  config: ResolvedConfig | ResolvedSftConfig,
): Pick<WorkerGroupOptions, 'startupTimeoutMs' | 'deadTimeoutMs' | 'closeTimeoutMs' | 'collectiveTimeoutMs'> {
  const { startup, silence, close } = config.trainer.worker_timeouts;
  const collective =
    'actor_rollout_ref' in config ? config.actor_rollout_ref.nccl_timeout : config.trainer.nccl_timeout;
  return {
    startupTimeoutMs: 1000 * startup,
    deadTimeoutMs: 1000 * silence,
    closeTimeoutMs: 1000 * close,
    collectiveTimeoutMs: 1000 * collective,
  };
}
