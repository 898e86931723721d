import { computeAdvantagesDouble } from '../../../ts/algorithms/advantages';
import { maskedMean } from '../../../ts/algorithms/masked';
import { Moments } from '../../../ts/algorithms/moments';
import { expectClose, fixture, flat, type Matrix } from './recorded_advantages';

describe('masked statistics', () => {
  const values = flat(fixture.inputs['values'] as Matrix);
  const mask = flat(fixture.inputs['mask'] as Matrix);

  test('equal the recorded ones', () => {
    const { helpers } = fixture;
    expect(maskedMean(values, mask)).toBeCloseTo(helpers['masked_mean'] as number, 12);
    const { mean, scale } = momentsOf(values.filter((_, i) => mask[i])).whitening();
    const whitened = values.map((value) => (value - mean) * scale);
    expectClose(whitened, helpers['masked_whiten'] as Matrix, 1e-9);
    expect(1 / scale ** 2 - 1e-8).toBeCloseTo(helpers['masked_var'] as number, 12);
  });

  test('ignore NaN outside the mask', () => {
    expect(maskedMean([1, Number.NaN, 3], [1, 0, 1])).toBeCloseTo(2, 7);
    const inputs = { offsets: [0, 3], tokenRewards: [1, 2, 3], values: [0, Number.NaN, 0], uid: ['p'] };
    const two = computeAdvantagesDouble('gae', { ...inputs, responseMask: [1, 0, 1] });
    expect([two.advantages[0], two.advantages[2]]).not.toContain(Number.NaN);
  });

  test.each(['gae', 'reinforce_plus_plus', 'reinforce_plus_plus_baseline', 'gdpo'])(
    'refuse a batch of one token, as verl does: %s',
    (name) => {
      const inputs = {
        offsets: [0, 3],
        responseMask: [0, 0, 1],
        tokenRewards: [1, 2, 3],
        values: [0.5, 0.5, 0.5],
        uid: ['p'],
        rewardComponents: { a: [3] },
      };
      expect(() => computeAdvantagesDouble(name, inputs)).toThrow(/at least two unmasked/);
    },
  );

  test('do not cancel when the mean is far from 0, however the numbers are divided', () => {
    const far = [1e9 + 1, 1e9 + 2, 1e9 + 4, 1e9 + 9];
    // Around their mean, 1e9 + 4, the squares add up to 38; verl's mean divides by n + 1e-8 and is 2.5 lower.
    const variance = (38 + 4 * 2.5 ** 2) / 3;
    for (const parts of [[far], [far.slice(0, 1), far.slice(1)], far.map((value) => [value])]) {
      const { scale } = momentsOf(...parts.map((part) => Float64Array.from(part))).whitening();
      expect(Math.abs(1 / scale ** 2 / variance - 1)).toBeLessThan(1e-6);
    }
  });
});

/** Moments of numbers that come in parts, each centred on its first. */
function momentsOf(...parts: Float64Array[]): Moments {
  const moments = new Moments();
  for (const part of parts) {
    const centre = part[0] as number;
    const centred = part.map((value) => value - centre);
    moments.add(
      part.length,
      centre,
      centred.reduce((sum, value) => sum + value, 0),
      centred.reduce((sum, value) => sum + value * value, 0),
    );
  }
  return moments;
}
