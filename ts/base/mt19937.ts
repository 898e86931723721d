const SIZE = 624;
const SHIFT = 397;

/**
 * The Mersenne Twister (Matsumoto & Nishimura 1998) as `numpy.random.seed` sets it up, so that bootstrap
 * metrics equal verl's to the bit.
 */
export class Mt19937 {
  private readonly key = new Uint32Array(SIZE);
  private position = SIZE;

  constructor(seed: number) {
    let state = seed >>> 0;
    for (let i = 0; i < SIZE; i++) {
      this.key[i] = state;
      state = (Math.imul(1812433253, state ^ (state >>> 30)) + i + 1) >>> 0;
    }
  }

  nextUint32(): number {
    if (this.position === SIZE) this.refill();
    let y = this.key[this.position++] as number;
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  /** Uniform on 0 .. n-1, by numpy's masked rejection (`RandomState.randint`); draws nothing for n = 1. */
  nextBelow(n: number): number {
    const max = n - 1;
    if (max === 0) return 0;
    const mask = 0xffffffff >>> Math.clz32(max);
    for (;;) {
      const value = (this.nextUint32() & mask) >>> 0;
      if (value <= max) return value;
    }
  }

  /** 0 <= x < 1 with 53 random bits, as numpy's `random_sample`. */
  nextDouble(): number {
    const high = this.nextUint32() >>> 5;
    const low = this.nextUint32() >>> 6;
    return (high * 2 ** 26 + low) / 2 ** 53;
  }

  private refill(): void {
    const { key } = this;
    for (let i = 0; i < SIZE; i++) {
      const y = ((key[i] as number) & 0x80000000) | ((key[(i + 1) % SIZE] as number) & 0x7fffffff);
      key[i] = (key[(i + SHIFT) % SIZE] as number) ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.position = 0;
  }
}
