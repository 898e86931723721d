// A curve in as many points as a screen shows, with every peak of it.
import { type LowHigh, lowHigh } from './extremes';

/** The first index at which ascending `xs` is not below `x`. */
export function lowerBound(xs: ArrayLike<number>, length: number, x: number): number {
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((xs[middle] as number) < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Indices of [from, to) that stand for all of them: at most `most`, and never fewer than 4. Of each of most/2 equal parts those of the
 * smallest and the largest finite value, in order; the first and the last of all stay, too. `find`: lowHigh of these values, where
 * something faster is at hand.
 */
export function thinned(
  values: ArrayLike<number>,
  from: number,
  to: number,
  most: number,
  find: (start: number, end: number) => LowHigh = (start, end) => lowHigh(values, start, end),
): number[] {
  const count = to - from;
  if (count <= Math.max(most, 4)) return Array.from({ length: count }, (_, i) => from + i);
  const parts = Math.max(1, Math.floor((most - 2) / 2));
  const chosen = [from];
  for (let part = 0; part < parts; part++) {
    const start = from + Math.floor((part * count) / parts);
    const end = from + Math.floor(((part + 1) * count) / parts);
    let [low, high] = find(start, end);
    // A gap stays one.
    if (low < 0) low = high = start;
    for (const i of low < high ? [low, high] : [high, low]) if (i > (chosen.at(-1) as number)) chosen.push(i);
  }
  if ((chosen.at(-1) as number) < to - 1) chosen.push(to - 1);
  return chosen;
}

/**
 * Exponential moving average with the weight of the start taken out, as TensorBoard's: m_t = w m_{t-1} + (1 - w) v_t, divided by
 * 1 - w^t. What is not finite is left out of it.
 */
export function smoothed(values: ArrayLike<number>, length: number, weight: number): Float64Array {
  const out = new Float64Array(length);
  let [mean, norm] = [0, 1];
  for (let i = 0; i < length; i++) {
    const value = values[i] as number;
    if (!Number.isFinite(value)) {
      out[i] = Number.NaN;
      continue;
    }
    mean = weight * mean + (1 - weight) * value;
    norm *= weight;
    out[i] = mean / (1 - norm);
  }
  return out;
}
