import { pfPpoResample, pfPpoWeights } from '../../../ts/algorithms/pf_ppo';
import { Mt19937 } from '../../../ts/base/mt19937';

const SCORES = [1, -2, 0, 3, 3];

describe('weights', () => {
  test.each([
    ['pow', undefined, [1, 4, 0, 9, 9]],
    ['pow', 1, [1, 2, 0, 3, 3]],
    ['max_min', undefined, [0, 1, 0, 1, 1]],
    ['max_random', undefined, [0.1, 0.1, 0.1, 0.4, 0.4]],
  ] as const)('%s, power %s', (method, weightPow, expected) => {
    const weights = pfPpoWeights(SCORES, { method, ...(weightPow === undefined ? {} : { weightPow }) });
    weights.forEach((weight, i) => {
      expect(weight).toBeCloseTo((expected[i] as number) + 1e-8, 12);
    });
  });

  test('an unknown method is refused', () => {
    expect(() => pfPpoWeights(SCORES, { method: 'mean' as 'pow' })).toThrow(
      /expected reweight_method .* 'mean'/,
    );
  });
});

describe('resampling', () => {
  const draw = (scores: number[], seed: number): number[] => {
    const random = new Mt19937(seed);
    return [...pfPpoResample(scores, { method: 'pow' }, () => random.nextDouble())];
  };

  test('takes as many as there are, in proportion to the weights', () => {
    const scores = Array.from({ length: 40_000 }, (_, i) => [0, 1, 2][i % 3] as number);
    const rows = draw(scores, 1);
    expect(rows).toHaveLength(scores.length);
    const counts = [0, 0, 0];
    for (const row of rows) counts[row % 3]!++;
    expect(counts[0]).toBe(0); // a weight of 1e-8
    expect((counts[2] as number) / (counts[1] as number)).toBeGreaterThan(3.7);
    expect((counts[2] as number) / (counts[1] as number)).toBeLessThan(4.3);
  });

  test('follows the random numbers alone', () => {
    expect(draw(SCORES, 7)).toEqual(draw(SCORES, 7));
    const bounds = (x: number): number[] => [...pfPpoResample(SCORES, { method: 'pow' }, () => x)];
    expect(bounds(0)).toEqual([0, 0, 0, 0, 0]);
    expect(bounds(1 - 2 ** -53)).toEqual([4, 4, 4, 4, 4]);
    // Cumulative 1, 5, 5, 14, 23 of 23: 0.2 is 4.6, in the second.
    expect(bounds(0.2)).toEqual([1, 1, 1, 1, 1]);
  });

  test('equal scores of 0 are drawn evenly', () => {
    expect(new Set(draw(new Array(50).fill(0), 3)).size).toBeGreaterThan(20);
  });
});

test('the random numbers are those of numpy.random.seed(42)', () => {
  const random = new Mt19937(42);
  expect([random.nextDouble(), random.nextDouble(), random.nextDouble()]).toEqual([
    0.3745401188473625, 0.9507143064099162, 0.7319939418114051,
  ]);
});
