/**
 * Seeded random numbers: mulberry32, a 32-bit generator that gives the same sequence on every machine.
 */
export class Random {
  #state;
  #spare = null;

  /** @param {number} seed any integer */
  constructor(seed) {
    this.#state = seed >>> 0;
  }

  /** @returns {number} uniform in [0, 1) */
  uniform() {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let x = this.#state;
    x = Math.imul(x ^ (x >>> 15), x | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  }

  /** @returns {number} an integer in [low, high] */
  integer(low, high) {
    return low + Math.floor(this.uniform() * (high - low + 1));
  }

  /** @returns {number} standard normal (Box-Muller) */
  normal() {
    if (this.#spare !== null) {
      const value = this.#spare;
      this.#spare = null;
      return value;
    }
    const radius = Math.sqrt(-2 * Math.log(1 - this.uniform()));
    const angle = 2 * Math.PI * this.uniform();
    this.#spare = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  }
}
