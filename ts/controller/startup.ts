import type { TroupeError } from '../errors';
import type { Member } from './member';

/** The time from starting the processes until all are ready, or one is not going to be. */
export class Startup {
  readonly #timeoutMs: number;
  readonly #outcome: Promise<void>;
  #resolve!: () => void;
  #reject!: (error: TroupeError) => void;
  #members: readonly Member[] = [];

  constructor(timeoutMs: number) {
    this.#timeoutMs = timeoutMs;
    this.#outcome = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#outcome.catch(() => {}); // a failure before or after wait() is reported elsewhere
  }

  /** Rejects with the error given to fail(), or with a WorkerDiedError for the first rank that is late. */
  async wait(members: readonly Member[]): Promise<void> {
    this.#members = members;
    const timer = setTimeout(() => this.#late(), this.#timeoutMs);
    try {
      await this.#outcome;
    } finally {
      clearTimeout(timer);
    }
  }

  /** A rank has become ready. */
  progress(): void {
    if (this.#members.every((member) => member.buildInfo !== null)) this.#resolve();
  }

  fail(error: TroupeError): void {
    this.#reject(error);
  }

  #late(): void {
    const late = this.#members.find((member) => member.buildInfo === null);
    if (late === undefined) return;
    const stage =
      late.connection === null ? 'it did not connect to the controller' : 'it did not load the addon';
    this.#reject(late.death('startup', `${stage} within ${this.#timeoutMs / 1000} s`));
  }
}
