/** Uniform 32-bit integers from a seed: SplitMix (Steele, Lea & Flood 2014) with a 32-bit finaliser from hash-prospector. */
function mixer(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x9e3779b9) | 0;
    let z = state ^ (state >>> 16);
    z = Math.imul(z, 0x21f0aaad);
    z ^= z >>> 15;
    z = Math.imul(z, 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  };
}

/** 0 .. n-1 in an order that depends on the seeds alone (Fisher-Yates). */
export function permutation(n: number, seed: number, epoch: number): Int32Array {
  const next = mixer(Math.imul(seed, 0x85ebca6b) ^ Math.imul(epoch + 1, 0xc2b2ae35));
  const order = Int32Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor((next() / 2 ** 32) * (i + 1));
    const kept = order[i] as number;
    order[i] = order[j] as number;
    order[j] = kept;
  }
  return order;
}

/** Which of `n` rows to use when at most `maxSamples` are wanted (-1: all), ascending: the first ones, or with `seed` a draw. */
export function chooseRows(n: number, maxSamples: number, seed: number | null): Int32Array {
  if (maxSamples < 0 || maxSamples >= n) return Int32Array.from({ length: n }, (_, i) => i);
  const order = seed === null ? Int32Array.from({ length: n }, (_, i) => i) : permutation(n, seed, -1);
  return order.slice(0, maxSamples).sort();
}
