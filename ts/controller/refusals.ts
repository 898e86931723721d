/** Lines about refused connections, of which a stranger can cause any number: some of them, and how many the rest are. */
export class RefusalLog {
  readonly #log: (line: string) => void;
  readonly #whose: string;
  readonly #pauseMs: number;
  #written = 0;
  #left = 0;
  #last = '';
  #timer: NodeJS.Timeout | null = null;

  /** `whose`: 'worker', say. */
  constructor(log: (line: string) => void, whose = 'worker', pauseMs = 60_000) {
    this.#log = log;
    this.#whose = whose;
    this.#pauseMs = pauseMs;
  }

  add(peer: string, reason: string): void {
    this.#last = `refused a ${this.#whose} connection from ${peer}: ${reason}`;
    if (this.#written < SHOWN) {
      this.#written++;
      this.#log(this.#last);
      return;
    }
    this.#left++;
    this.#timer ??= setTimeout(() => this.flush(), this.#pauseMs).unref();
  }

  /** Says how many have not been shown. */
  flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#left > 0) this.#log(`${this.#last} (and ${this.#left - 1} more)`);
    this.#left = 0;
  }
}

const SHOWN = 5;
