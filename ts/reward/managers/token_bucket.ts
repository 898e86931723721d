import type { Clock } from '../contract/types';

/**
 * Lets `perMinute` units per minute pass, evenly, with bursts of up to one second's worth. Who comes first goes first:
 * each caller takes its units at once, into debt if need be, and waits until the debt is paid, so that a request larger
 * than the bucket waits long but not for ever.
 */
export class TokenBucket {
  readonly #perMs: number;
  readonly #capacity: number;
  readonly #clock: Clock;
  #level: number;
  #filledAt: number;

  constructor(perMinute: number, clock: Clock) {
    this.#perMs = perMinute / 60_000;
    this.#capacity = perMinute / 60;
    this.#clock = clock;
    this.#level = this.#capacity;
    this.#filledAt = clock.now();
  }

  async acquire(units: number): Promise<void> {
    const now = this.#clock.now();
    this.#level = Math.min(this.#capacity, this.#level + (now - this.#filledAt) * this.#perMs);
    this.#filledAt = now;
    this.#level -= units;
    if (this.#level < 0) await this.#clock.sleep(-this.#level / this.#perMs);
  }
}
