// Held here, and not looked up at the call: V8 would compile the rare path as a lookup that may do anything.
const { exp } = Math;
const STEP = 1 / 1024;
const LOWEST = -40;
const TABLE = Float64Array.from({ length: -LOWEST / STEP + 1 }, (_, n) => exp(-n * STEP));
const LINEAR = STEP;
const QUADRATIC = (STEP * STEP) / 2;
const CUBIC = (STEP * STEP * STEP) / 6;

/**
 * e^x for log-probabilities: within 3e-15 (relative) of Math.exp for -40 <= x <= 0, Math.exp itself elsewhere (NaN and infinities
 * too). With x = (r - n) / 1024, |r| <= 1/2, e^x is an entry of the table times a polynomial in r, which leaves out
 * (r / 1024)^4 / 24 < 2.4e-15; r itself is exact. Math.exp alone would cost an estimator more than all its other work.
 */
export function expOfLogProb(x: number): number {
  if (!(x >= LOWEST && x <= 0)) return exp(x);
  const steps = x * (-1 / STEP);
  const n = (steps + 0.5) | 0;
  const r = n - steps;
  const nearest = TABLE[n] as number;
  return nearest + nearest * (r * (LINEAR + r * (QUADRATIC + r * CUBIC)));
}
