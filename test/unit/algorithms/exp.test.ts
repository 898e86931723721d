import { expOfLogProb } from '../../../ts/algorithms/exp';

test('expOfLogProb equals Math.exp within 3e-15', () => {
  let worst = 0;
  for (let n = 0; n <= 400_000; n++) {
    const x = -n * 1.0000001e-4; // the whole of the table and its middles, and beyond -40
    worst = Math.max(worst, Math.abs(expOfLogProb(x) / Math.exp(x) - 1));
  }
  expect(worst).toBeLessThan(3e-15);
  for (const x of [0, -0, 1e-7, 3, 800, -40, -41, -744, -800, -1e300, Infinity, -Infinity, NaN])
    expect(expOfLogProb(x)).toBe(Math.exp(x));
});
