import type { TroupeError } from '../errors';
import { HeartbeatMonitor, heartbeatInterval } from '../worker/heartbeat';
import type { Member } from './member';

/** The time from starting the processes until all are ready, or one is not going to be. */
export class Startup {
  readonly #timeoutMs: number;
  readonly #deadTimeoutMs: number;
  readonly #outcome: Promise<void>;
  #resolve!: () => void;
  #reject!: (error: TroupeError) => void;
  #members: readonly Member[] = [];

  /** `deadTimeoutMs`: how long a process may be stopped. */
  constructor(timeoutMs: number, deadTimeoutMs: number) {
    this.#timeoutMs = timeoutMs;
    this.#deadTimeoutMs = deadTimeoutMs;
    this.#outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#outcome.catch(() => {}); // a failure before or after wait() is reported elsewhere
  }

  /** Rejects with the error given to fail(), or with a WorkerDiedError for the first rank that is late or stopped. */
  async wait(members: readonly Member[]): Promise<void> {
    this.#members = members;
    const timer = setTimeout(() => this.#late(), this.#timeoutMs);
    const stopped = this.#watchStopped();
    try {
      await this.#outcome;
    } finally {
      clearTimeout(timer);
      stopped.stop();
    }
  }

  /** A rank has become ready. */
  progress(): void {
    if (this.#members.every((member) => member.buildInfo !== null)) this.#resolve();
  }

  fail(error: TroupeError): void {
    this.#reject(error);
  }

  /** Nobody sends heartbeats yet, so what the system says of a process is asked for as often. */
  #watchStopped(): { stop(): void } {
    const monitor = new HeartbeatMonitor(this.#deadTimeoutMs, (rank) => {
      const reason = `its process has been stopped (SIGSTOP) for ${this.#deadTimeoutMs / 1000} s`;
      this.#reject((this.#members[rank] as Member).death('startup', reason));
    });
    for (const { rank } of this.#members) monitor.watch(rank);
    const timer = setInterval(() => {
      for (const { rank, buildInfo, process } of this.#members)
        if (buildInfo !== null || process.stopped?.() !== true) monitor.heard(rank);
    }, heartbeatInterval(this.#deadTimeoutMs));
    return {
      stop() {
        monitor.stop();
        clearInterval(timer);
      },
    };
  }

  #late(): void {
    const late = this.#members.find((member) => member.buildInfo === null);
    if (late === undefined) return;
    const stage =
      late.connection === null ? 'it did not connect to the controller' : 'it did not load the addon';
    this.#reject(late.death('startup', `${stage} within ${this.#timeoutMs / 1000} s`));
  }
}
