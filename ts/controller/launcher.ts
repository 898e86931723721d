/** How a worker ended: its exit code, or the signal that killed it. */
export interface WorkerExit {
  exitCode: number | null;
  signal: string | null;
}

/** A started worker process. */
export interface WorkerProcess {
  readonly pid: number | null;
  /** Settles when the process has ended and its output has been read; never rejects. */
  readonly exited: Promise<WorkerExit>;
  /** The last lines of its stderr so far, for error messages. */
  stderrTail(): string;
  /** SIGKILL, or what comes closest; nothing when it has ended. */
  kill(): void;
  /** Whether somebody has stopped it (SIGSTOP), where that can be known: a worker that has not connected yet gives no other sign. */
  stopped?(): boolean;
}

/** What a process needs to become a worker; readWorkerSettings (ts/worker) reads it. */
export interface WorkerEnvironment {
  TROUPE_CONTROLLER: string;
  TROUPE_TOKEN: string;
  RANK: string;
  WORLD_SIZE: string;
  LOCAL_RANK: string;
}

/** A group among others on the same machine: see ResourcePools. */
export interface PoolPlace {
  /** Errors and the output of workers name it. */
  name: string;
  /** Local rank of the group's rank 0: its workers use the GPUs from this one on. */
  firstLocalRank: number;
  /** Workers of all groups: they share the cores. */
  localWorldSize: number;
}

export interface WorkerSpec {
  rank: number;
  worldSize: number;
  /** Among all workers of the run on this machine, whatever their pool: the GPU to use. */
  localRank: number;
  localWorldSize: number;
  /** Where the run has several pools of workers: the name of this one. */
  pool: string | null;
  device: 'cpu' | 'cuda';
  /** Threads to compute with; null: the worker's own choice. */
  numThreads: number | null;
  env: WorkerEnvironment;
}

/** Anything that can start a process with an address and a token. */
export interface Launcher {
  /** Returns at once; a process that cannot be started shows as `exited`. */
  start(spec: WorkerSpec): WorkerProcess;
}

/** Local child processes, the default. */
export interface LauncherOptions {
  type?: 'local';
  /** Further environment variables of the workers. */
  env?: Record<string, string>;
}
