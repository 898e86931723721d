// Held here, and not looked up at the call: V8 would compile the rare path as a lookup that may do anything.
const { exp } = Math;
const STEPS_PER_UNIT = 512;
const LOWEST = -40;
const LAST_STEP = -LOWEST * STEPS_PER_UNIT;
const TABLE = Float64Array.from({ length: LAST_STEP + 1 }, (_, step) => exp(-step / STEPS_PER_UNIT));

/**
 * e^x for log-probabilities: within 4e-14 (relative) of Math.exp for -40 <= x <= 0, Math.exp itself elsewhere (NaN and infinities
 * too). With x = r - n/512, |r| <= 1/1024, e^x is an entry of the table times a polynomial in r. The subtraction is exact and the
 * polynomial leaves out r^4/24 < 4e-14, far below what float32 log-probs tell. Math.exp alone would cost an estimator more than all
 * its other work.
 */
export function expOfLogProb(x: number): number {
  if (!(x >= LOWEST && x <= 0)) return exp(x);
  const step = (0.5 - x * STEPS_PER_UNIT) | 0;
  const r = x + step * (1 / STEPS_PER_UNIT);
  const nearest = TABLE[step] as number;
  return nearest + nearest * (r + r * r * (0.5 + r * (1 / 6)));
}
