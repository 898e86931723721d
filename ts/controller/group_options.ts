import {
  badOption,
  checkOptionNames,
  choiceOption,
  countOption,
  functionOption,
  numberOption,
} from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import type { EngineCall } from './call';
import type { CallLimitOptions } from './call_limits';
import type { Launcher, LauncherOptions, PoolPlace } from './launcher';
import { checkLauncher } from './require_group';
import type { WorkerLogs } from './worker_log';

/** What a group of workers is started with. */
export interface WorkerGroupOptions {
  worldSize: number;
  device: 'cpu' | 'cuda';
  /**
   * What carries collectives between workers; default: nccl on GPUs, else gloo. NCCL wants a GPU for each worker; over gloo, which goes through
   * memory of the host, several may share one (CUDA_VISIBLE_DEVICES=0,0).
   */
  backend?: 'gloo' | 'nccl';
  /** Hosts of the launcher that the workers are spread over, in order and evenly; default 1. */
  hosts?: number;
  /** Default: no other group works beside this one. */
  pool?: PoolPlace;
  /** Threads per worker; default: LibTorch's choice, and with several workers an equal share of the cores. */
  numThreads?: number;
  /** Default: local child processes. */
  launcher?: LauncherOptions | Launcher;
  /** How long the workers may take until all are ready; default 60 s. */
  startupTimeoutMs?: number;
  /** A worker that sends nothing for this long is dead; default 10 s. */
  deadTimeoutMs?: number;
  /** How long a worker may take to finish its work and exit when asked; then it is killed. Default 5 s. */
  closeTimeoutMs?: number;
  /**
   * How long one collective between workers may take; default 10 min: a rank with little to do waits in it for the others. A dead
   * worker is noticed without it.
   */
  collectiveTimeoutMs?: number;
  /** Where all that the workers write is kept; default: nowhere. */
  logs?: WorkerLogs;
  /** How long a call of an engine may take; default: for ever, as long as its workers live. */
  callLimits?: CallLimitOptions;
  /** Receives lines about connections that are refused; default: stderr. */
  log?: (line: string) => void;
  /** Hears of every call of an engine that has been answered. */
  onCall?: (call: EngineCall) => void;
}

type WithDefault =
  | 'backend'
  | 'hosts'
  | 'startupTimeoutMs'
  | 'deadTimeoutMs'
  | 'closeTimeoutMs'
  | 'collectiveTimeoutMs'
  | 'log';

/** With what holds where nothing is said. */
export type ResolvedGroupOptions = Omit<WorkerGroupOptions, 'pool'> &
  Required<Pick<WorkerGroupOptions, WithDefault>> & { pool: PoolPlace | null };

const NAMES = [
  'worldSize',
  'device',
  'backend',
  'hosts',
  'pool',
  'numThreads',
  'launcher',
  'startupTimeoutMs',
  'deadTimeoutMs',
  'closeTimeoutMs',
  'collectiveTimeoutMs',
  'logs',
  'callLimits',
  'log',
  'onCall',
] as const satisfies readonly (keyof WorkerGroupOptions)[];

const TIMES = ['startupTimeoutMs', 'deadTimeoutMs', 'collectiveTimeoutMs'] as const;
const MOST_MS = 1000 * RUN_LIMITS.seconds;

/** @throws TroupeError INVALID_ARGUMENT for counts that no group can have, and options that do not exist */
export function resolveGroupOptions(options: WorkerGroupOptions): ResolvedGroupOptions {
  const where = 'worker group';
  checkOptionNames(where, options, NAMES);
  const { worldSize, device, hosts = 1, pool = null } = options;
  countOption(where, 'worldSize', worldSize, RUN_LIMITS.ranks);
  countOption(where, 'numThreads', options.numThreads ?? 1, RUN_LIMITS.threads);
  countOption(where, 'hosts', hosts, RUN_LIMITS.ranks);
  if (worldSize % hosts !== 0)
    throw badOption(where, `worldSize ${worldSize}: expected a multiple of hosts ${hosts}`);
  choiceOption(where, 'device', device, ['cpu', 'cuda'], 'cpu');
  choiceOption(where, 'backend', options.backend, ['gloo', 'nccl'], 'gloo');
  for (const name of TIMES) numberOption(where, name, options[name], 1, { above: 0, max: MOST_MS });
  // 0: they are killed at once.
  numberOption(where, 'closeTimeoutMs', options.closeTimeoutMs, 0, { min: 0, max: MOST_MS });
  checkLauncher(where, options.launcher);
  for (const name of ['log', 'onCall'] as const) functionOption(where, name, options[name]);
  return {
    ...options,
    hosts,
    pool,
    backend: options.backend ?? (device === 'cuda' ? 'nccl' : 'gloo'),
    startupTimeoutMs: options.startupTimeoutMs ?? 60_000,
    deadTimeoutMs: options.deadTimeoutMs ?? 10_000,
    closeTimeoutMs: options.closeTimeoutMs ?? 5_000,
    collectiveTimeoutMs: options.collectiveTimeoutMs ?? 600_000,
    log: options.log ?? ((line) => process.stderr.write(`${line}\n`)),
  };
}
