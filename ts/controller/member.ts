import type { WorkerDiedError } from '../errors';
import type { NativeBuildInfo } from '../native/bridge';
import type { WorkerExit, WorkerProcess } from './launcher';
import type { WorkerConnection } from './server';
import { describeExit, workerDied } from './worker_death';
import type { WorkerLog } from './worker_log';
import { WorkerClient } from './worker_requests';

/** One rank of a group: its process, its stream once it has dialled in, and the requests it owes an answer. */
export class Member {
  readonly rank: number;
  /** Of the group, where the run has several. */
  readonly pool: string | null;
  readonly process: WorkerProcess;
  readonly client: WorkerClient;
  /** The file with all that it writes; null: there is none. */
  readonly logFile: string | null;
  connection: WorkerConnection | null = null;
  /** Set when the process has ended. */
  exit: WorkerExit | null = null;
  /** Set when the worker is ready. */
  buildInfo: NativeBuildInfo | null = null;

  /** The host that it runs on, where there are several. */
  get host(): string | null {
    return this.process.host ?? null;
  }

  constructor(rank: number, pool: string | null, process: WorkerProcess, log: WorkerLog | null) {
    this.rank = rank;
    this.pool = pool;
    this.process = process;
    this.logFile = log?.path ?? null;
    if (log !== null) this.#record(log);
    this.client = new WorkerClient(rank, {
      send: (message) => this.connection?.send(message),
      sendNow: (message) => this.connection?.sendNow(message),
    });
  }

  /** The error to fail the group with; `reason` says why it counts as dead while its process exists. */
  death(phase: string | null, reason: string | null = null): WorkerDiedError {
    const request = this.client.current;
    return workerDied({
      rank: this.rank,
      pool: this.pool,
      host: this.host,
      logFile: this.logFile,
      phase: phase ?? request ?? (this.buildInfo === null ? 'startup' : 'idle'),
      request,
      exit: this.exit,
      reason,
      stderrTail: this.process.stderrTail(),
    });
  }

  kill(): void {
    if (this.exit === null) this.process.kill();
  }

  #record(log: WorkerLog): void {
    const { process, rank, host } = this;
    log.note(`rank ${rank} is started${host === null ? '' : ` on ${host}`}`);
    process.listen?.((text, isError) => log.line(text, isError));
    void process.exited.then((exit) => log.note(`it has ended: ${describeExit(exit)}`));
  }
}
