import type { Machine } from './machine';
import type { ListenPlace } from './message_server';

/** How a worker ended: its exit code, or the signal that killed it. */
export interface WorkerExit {
  exitCode: number | null;
  signal: string | null;
  /** Where neither is known: why it counts as ended ("its host node2 was lost: ..."). */
  lost?: string;
}

/** `native`: of all threads, by a debugger; `script`: the functions of JavaScript that its main thread does not come out of. */
export type StackKind = 'native' | 'script';

/** A started worker process. */
export interface WorkerProcess {
  readonly pid: number | null;
  /** The host that it runs on, where that is not this machine alone: errors name it. */
  readonly host?: string;
  /** Where the peers of this worker reach it; default: 127.0.0.1. */
  readonly address?: string;
  /** Settles when the process has ended and its output has been read; never rejects. */
  readonly exited: Promise<WorkerExit>;
  /** Calls back with each line that it writes from now on, where these come here. */
  listen?(line: (text: string, isError: boolean) => void): void;
  /** The last lines of its stderr so far, for error messages. */
  stderrTail(): string;
  /** SIGKILL, or what comes closest; nothing when it has ended. */
  kill(): void;
  /** Where its threads are, or its JavaScript is, as text; '' when that cannot be known. Takes seconds; never rejects. */
  stacks?(kind: StackKind): Promise<string>;
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

/** A group among others on the same machines: see ResourcePools. */
export interface PoolPlace {
  /** Errors and the output of workers name it. */
  name: string;
  /** Local rank of the group's first worker on each host: its workers use the GPUs from this one on. */
  firstLocalRank: number;
  /** Workers of all groups on one host: they share the cores. */
  localWorldSize: number;
}

export interface WorkerSpec {
  rank: number;
  worldSize: number;
  /** Which of the hosts it runs on, from 0. */
  host: number;
  /** Among all workers of the run on this host, whatever their pool: the GPU to use. */
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
  /** Where the controller listens for the workers; default: on a free port of 127.0.0.1. */
  readonly listen?: ListenPlace;
  /** What is known of the hosts that it starts workers on. Default: nothing. */
  readonly machine?: Machine;
  /** Of a host, for the threads of its workers; default: those of this machine. */
  cores?(host: number): number;
  /** A port of 127.0.0.1 on the host `from` that leads to `port` of 127.0.0.1 on the host `to`. Default: one machine, and the same port. */
  forward?(port: number, to: number, from: number): Promise<number>;
}

/** Local child processes, the default. */
export interface LauncherOptions {
  type?: 'local';
  /** Further environment variables of the workers. */
  env?: Record<string, string>;
}
