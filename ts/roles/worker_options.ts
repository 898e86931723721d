import { join } from 'node:path';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import type { WorkerGroupOptions } from '../controller/group_options';
import { WorkerLogs } from '../controller/worker_log';

/** How long workers may take for what, in seconds -> milliseconds. */
export function workerTimeouts(
  config: ResolvedConfig | ResolvedSftConfig,
): Pick<
  WorkerGroupOptions,
  'startupTimeoutMs' | 'deadTimeoutMs' | 'closeTimeoutMs' | 'collectiveTimeoutMs' | 'callLimits'
> {
  const {
    startup,
    silence,
    close,
    call,
    call_factor: factor,
    call_floor: floor,
  } = config.trainer.worker_timeouts;
  const collective =
    'actor_rollout_ref' in config ? config.actor_rollout_ref.nccl_timeout : config.trainer.nccl_timeout;
  return {
    startupTimeoutMs: 1000 * startup,
    deadTimeoutMs: 1000 * silence,
    closeTimeoutMs: 1000 * close,
    collectiveTimeoutMs: 1000 * collective,
    callLimits: { fixedMs: call === null ? null : 1000 * call, factor, floorMs: 1000 * floor },
  };
}

/** Where what the workers of this start write is kept: logs/ of the run directory. */
export function workerLogs(config: ResolvedConfig | ResolvedSftConfig): Pick<WorkerGroupOptions, 'logs'> {
  // Programs put configurations together from sections, and may leave this one out.
  const limits = config.logging?.workers;
  if (limits === undefined || limits.starts === 0) return {};
  const { starts, max_size: maxBytes } = limits;
  return { logs: new WorkerLogs(join(config.trainer.default_local_dir, 'logs'), { starts, maxBytes }) };
}
