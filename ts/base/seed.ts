/**
 * A 53-bit seed that depends on every part: all randomness of a run comes from (seed, purpose, step, ...), so that a
 * resumed run draws what the uninterrupted one would have drawn. Mixing: splitmix64's finaliser (Steele et al. 2014).
 */
export function deriveSeed(...parts: (number | string)[]): number {
  const mask = (1n << 64n) - 1n;
  let state = 0x9e3779b97f4a7c15n;
  const absorb = (word: bigint): void => {
    state = (state + word + 0x9e3779b97f4a7c15n) & mask;
    state = ((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
    state = ((state ^ (state >> 27n)) * 0x94d049bb133111ebn) & mask;
    state ^= state >> 31n;
  };
  for (const part of parts) {
    if (typeof part === 'number') {
      absorb(BigInt.asUintN(64, BigInt(Math.trunc(part))));
    } else {
      for (const byte of Buffer.from(`${part}\0`)) absorb(BigInt(byte));
    }
  }
  return Number(state >> 11n);
}
