import type { WorkerDiedError } from '../errors';
import type { NativeBuildInfo } from '../native/bridge';
import type { ControllerMessage } from '../worker/protocol';
import type { StackKind, WorkerExit, WorkerProcess } from './launcher';
import type { WorkerConnection } from './server';
import { within } from './within';
import { describeExit, workerDied } from './worker_death';
import type { WorkerLog } from './worker_log';
import { type AnsweredCall, WorkerClient } from './worker_requests';

/** A debugger on another host has its own limit, which is shorter. */
const STACKS_MS = 45_000;

/** One rank of a group: its process, its stream once it has dialled in, and the requests it owes an answer. */
export class Member {
  readonly rank: number;
  /** Of the group, where the run has several. */
  readonly pool: string | null;
  readonly process: WorkerProcess;
  readonly client: WorkerClient;
  readonly #log: WorkerLog | null;
  connection: WorkerConnection | null = null;
  /** Set when the process has ended. */
  exit: WorkerExit | null = null;
  /** Set when the worker is ready. */
  buildInfo: NativeBuildInfo | null = null;

  /** The file with all that it has written; null: there is none. */
  get logFile(): string | null {
    return this.#log?.path ?? null;
  }

  /** The host that it runs on, where there are several. */
  get host(): string | null {
    return this.process.host ?? null;
  }

  constructor(
    rank: number,
    pool: string | null,
    process: WorkerProcess,
    log: WorkerLog | null,
    answered: (call: AnsweredCall) => void,
  ) {
    this.rank = rank;
    this.pool = pool;
    this.process = process;
    this.#log = log;
    if (log !== null) this.#record(log);
    const wire = {
      send: (message: ControllerMessage) => this.connection?.send(message),
      sendNow: (message: ControllerMessage) => this.connection?.sendNow(message),
    };
    this.client = new WorkerClient(rank, wire, answered);
  }

  /**
   * The error to fail the group with; `reason` says why it counts as dead while its process exists. `request`: what it was at, where it has
   * given that up meanwhile.
   */
  death(phase: string | null, reason: string | null = null, request = this.client.current): WorkerDiedError {
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

  /** Where its threads are (or its JavaScript is), also put into its log; null: that cannot be known, or not in time. */
  async stacks(kind: StackKind, patienceMs = STACKS_MS): Promise<string | null> {
    let text = '';
    const asked = this.process.stacks?.(kind).then((found) => {
      text = found;
    });
    if (asked !== undefined) await within(patienceMs, asked);
    if (text === '') return null;
    this.#log?.stacks(text);
    return text;
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
