import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { RolloutCorrectionOptions } from '../../../ts/algorithms/rollout_correction/options';
import { PRESET_NAMES, rolloutCorrectionPreset } from '../../../ts/algorithms/rollout_correction/presets';
import {
  type CorrectionInputs,
  type CorrectionResult,
  rolloutCorrection,
  rolloutCorrectionDouble,
} from '../../../ts/algorithms/rollout_correction/rollout_correction';
import { REJECTION_NAMES } from '../../../ts/algorithms/rollout_correction/thresholds';
import { Batch } from '../../../ts/batch/batch';

type Matrix = number[][];
interface Recorded {
  weights: Matrix | null;
  mask: Matrix;
  metrics: Record<string, number>;
}
const fixture: {
  inputs: Record<'mask' | 'old_log_prob' | 'rollout_log_prob', Matrix>;
  params: { rollout_correction: Record<string, Record<string, unknown>> };
  rollout_correction: Record<string, Recorded>;
} = JSON.parse(readFileSync(join(__dirname, '../../fixtures/conformance/core_head.json'), 'utf8'));

const flat = (matrix: Matrix): Float64Array => Float64Array.from(matrix.flat());

function recordedInputs(): CorrectionInputs {
  const { mask, old_log_prob, rollout_log_prob } = fixture.inputs;
  const width = (mask[0] as number[]).length;
  return {
    offsets: Array.from({ length: mask.length + 1 }, (_, i) => i * width),
    responseMask: flat(mask),
    logProbs: flat(old_log_prob),
    rolloutLogProbs: flat(rollout_log_prob),
  };
}

const camel = (name: string): string =>
  name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
const optionsOf = (params: Record<string, unknown>): RolloutCorrectionOptions =>
  Object.fromEntries(Object.entries(params).map(([key, value]) => [camel(key), value]));

describe('equals the recorded corrections of verl', () => {
  test.each(Object.keys(fixture.params.rollout_correction))('%s', (name) => {
    const options = optionsOf(fixture.params.rollout_correction[name] as Record<string, unknown>);
    const expected = fixture.rollout_correction[name] as Recorded;
    const result = rolloutCorrectionDouble(recordedInputs(), options);
    expect([...result.responseMask]).toEqual([...flat(expected.mask)]);
    if (expected.weights === null) expect(result.rolloutIsWeights).toBeNull();
    else {
      const want = flat(expected.weights);
      expect(result.rolloutIsWeights?.length).toBe(want.length);
      for (const [t, w] of want.entries())
        expect(Math.abs((result.rolloutIsWeights?.[t] as number) - w)).toBeLessThanOrEqual(1e-9 * w);
    }
    expect(Object.keys(result.metrics).sort()).toEqual(Object.keys(expected.metrics).sort());
    for (const [key, want] of Object.entries(expected.metrics)) {
      // verl takes these shares of sequences in float32.
      const tolerance = /fraction/.test(key) ? 1e-7 : 1e-9;
      const difference = Math.abs((result.metrics[key] as number) - want);
      if (difference > tolerance * Math.max(Math.abs(want), 1e-6))
        throw new Error(`${key}: expected ${want}, got ${result.metrics[key]}`);
    }
  });
});

/** Sequences of per-token log ratios, rollout log-probs −1; null: masked, with NaN log-probs. */
function ratios(rows: (number | null)[][]): CorrectionInputs {
  const all = rows.flat();
  const offsets = [0];
  for (const row of rows) offsets.push((offsets.at(-1) as number) + row.length);
  return {
    offsets,
    responseMask: all.map((lr) => (lr === null ? 0 : 1)),
    logProbs: all.map((lr) => (lr === null ? Number.NaN : lr - 1)),
    rolloutLogProbs: all.map((lr) => (lr === null ? Number.NaN : -1)),
  };
}

const metric = (result: CorrectionResult, name: string): number =>
  result.metrics[`rollout_corr/${name}`] as number;

describe('edges', () => {
  const rows = ratios([[Math.log(2), null, Math.log(0.25)], [null, null], [], [Math.log(4)]]);

  test('whatever lies outside the mask is not read', () => {
    const result = rolloutCorrectionDouble(rows, {
      rolloutIs: 'sequence',
      rolloutIsThreshold: 3,
      rolloutRs: 'seq_max_k3,token_k1',
      rolloutRsThreshold: '10,0.3_8',
    });
    const rounded = Array.from(result.rolloutIsWeights as Float64Array, Math.fround);
    expect(rounded).toEqual([0.5, 0, 0.5, 0, 0, 3]);
    expect([...result.responseMask]).toEqual([1, 0, 1, 0, 0, 0]);
    for (const [name, value] of Object.entries(result.metrics))
      if (!Number.isFinite(value)) throw new Error(`${name} is ${value}`);
  });

  test('sequences without a valid token: weight 0 and ratio 1 in statistics, left out of the rejection’s', () => {
    const result = rolloutCorrectionDouble(rows, {
      rolloutIs: 'sequence',
      rolloutIsThreshold: 3,
      rolloutRs: 'seq_sum_k1',
      rolloutRsThreshold: 3,
    });
    expect(metric(result, 'rollout_is_min')).toBeCloseTo(0.5, 12);
    expect(metric(result, 'rollout_is_max')).toBeCloseTo(4, 12);
    expect(metric(result, 'rollout_is_seq_min')).toBe(0);
    expect(metric(result, 'rollout_is_seq_mean')).toBeCloseTo(3.5 / 4, 7);
    expect(metric(result, 'rollout_is_ratio_fraction_high')).toBe(0.25);
    expect(metric(result, 'rollout_is_seq_fraction_low')).toBe(0.5);
    expect(metric(result, 'rollout_rs_seq_sum_k1_seq_masked_fraction')).toBe(0.5);
    expect(metric(result, 'rollout_rs_seq_masked_fraction')).toBe(0.25);
    expect(metric(result, 'training_ppl')).toBeCloseTo(
      (Math.exp(1 + Math.log(2) / 2) + 2 + Math.exp(1) / 4) / 4,
      6,
    );
  });

  test.each(['1_2', '0.5_1'])('a weight exactly at a bound of %s is inside', (rolloutIsThreshold) => {
    const inputs = ratios([[0, Math.log(8)], [0]]);
    const result = rolloutCorrectionDouble(inputs, { rolloutIs: 'token', rolloutIsThreshold });
    expect([...(result.rolloutIsWeights as Float64Array)]).toEqual([1, 0, 1]);
    expect(metric(result, 'rollout_is_oob_ratio')).toBeCloseTo(1 / 3, 8);
  });

  test('batch normalisation is over tokens, or over sequences that have one', () => {
    const of = (rolloutIs: 'token' | 'sequence') =>
      rolloutCorrectionDouble(rows, { rolloutIs, rolloutIsThreshold: 10, rolloutIsBatchNormalize: true });
    expect(metric(of('token'), 'rollout_is_batch_norm_factor')).toBeCloseTo((2 + 0.25 + 4) / 3, 7);
    expect(metric(of('sequence'), 'rollout_is_batch_norm_factor')).toBeCloseTo((0.5 + 4) / 2, 7);
    expect(of('sequence').rolloutIsWeights?.[5]).toBeCloseTo(4 / 2.25, 7);
  });

  test('one token: no deviation; all weights 0: no effective sample, no division', () => {
    const single = rolloutCorrectionDouble(ratios([[Math.log(2)]]), {
      rolloutIs: 'token',
      rolloutIsThreshold: '3_4',
      rolloutIsBatchNormalize: true,
      rolloutRs: 'token_k2',
      rolloutRsThreshold: 1,
    });
    expect(single.rolloutIsWeights?.[0]).toBe(0);
    for (const name of ['rollout_is_std', 'rollout_is_seq_std', 'rollout_is_eff_sample_size'])
      expect(metric(single, name)).toBe(0);
    expect(metric(single, 'rollout_is_batch_norm_factor')).toBe(1);
    expect(metric(single, 'rollout_rs_token_k2_std')).toBe(0);
    expect(metric(single, 'rollout_is_oob_ratio')).toBeCloseTo(1, 7);
  });

  test('exponents are bounded by 20, and bounds are inclusive', () => {
    const far = rolloutCorrectionDouble(ratios([[50, -50]]), {
      rolloutIs: 'token',
      rolloutIsThreshold: 'inf',
    });
    expect([...(far.rolloutIsWeights as Float64Array)]).toEqual([Math.exp(20), Math.exp(-20)]);
    const edge = rolloutCorrectionDouble(ratios([[0.5, -0.5, 0.51]]), {
      rolloutRs: 'token_k2',
      rolloutRsThreshold: 0.125,
    });
    expect([...edge.responseMask]).toEqual([1, 1, 0]);
  });

  test('exponents in statistics are bounded, too', () => {
    const sequence = rolloutCorrectionDouble(ratios([[15], [50], [0]]), {
      rolloutIs: 'sequence',
      rolloutIsThreshold: 'inf',
    });
    expect(metric(sequence, 'rollout_is_max')).toBe(Math.exp(20));
    // Squares of ratios, each of which is bounded: those of tokens and those of sequences are the same here.
    const square = (Math.exp(30) + Math.exp(40) + 1) / 3;
    expect(metric(sequence, 'chi2_seq') / square).toBeCloseTo(1, 12);
    expect(metric(sequence, 'chi2_token') / square).toBeCloseTo(1, 7);
  });

  test('two sequences have a deviation', () => {
    const two = rolloutCorrectionDouble(ratios([[0], [Math.log(2)]]), {
      rolloutIs: 'sequence',
      rolloutIsThreshold: 5,
    });
    // Of 1 and 2, unbiased.
    expect(metric(two, 'rollout_is_seq_std')).toBeCloseTo(Math.SQRT1_2, 7);
  });

  test('a single token has no deviation, whatever its weight', () => {
    const single = rolloutCorrectionDouble(ratios([[Math.log(2)]]), {
      rolloutIs: 'token',
      rolloutIsThreshold: 5,
    });
    expect(metric(single, 'rollout_is_mean')).toBeCloseTo(2, 7);
    expect(metric(single, 'rollout_is_std')).toBe(0);
  });

  test('k1 bounds hold for rollout / train', () => {
    const result = rolloutCorrectionDouble(ratios([[Math.log(1.5), -Math.log(1.5)]]), {
      rolloutRs: 'token_k1',
      rolloutRsThreshold: '0.5_1.2',
    });
    expect([...result.responseMask]).toEqual([1, 0]);
  });

  test('a NaN log-prob under the mask is rejected by every criterion and gets IcePop weight 0', () => {
    const inputs = { ...ratios([[0, 0]]), logProbs: [Number.NaN, -1] };
    for (const rolloutRs of ['token_k1', 'token_k2', 'token_k3'])
      expect([...rolloutCorrectionDouble(inputs, { rolloutRs, rolloutRsThreshold: 2 }).responseMask]).toEqual(
        [0, 1],
      );
    const icepop = rolloutCorrectionDouble(inputs, { rolloutIs: 'token', rolloutIsThreshold: '0.5_2' });
    expect([...(icepop.rolloutIsWeights as Float64Array)]).toEqual([0, 1]);
  });

  test('every criterion keeps equal policies and drops distant ones', () => {
    for (const rolloutRs of REJECTION_NAMES) {
      const options = { rolloutRs, rolloutRsThreshold: 1.5 };
      expect([...rolloutCorrectionDouble(ratios([[0, 0], [0]]), options).responseMask]).toEqual([1, 1, 1]);
      const mixed = rolloutCorrectionDouble(ratios([[3, 3], [0]]), options);
      expect([...mixed.responseMask]).toEqual([0, 0, 1]);
      expect(metric(mixed, 'rollout_rs_masked_fraction')).toBeCloseTo(2 / 3, 7);
    }
  });
});

test('without a threshold there are no weights, and nothing is said of them', () => {
  const inputs = ratios([[0.1, 0.2], [-3]]);
  const without = rolloutCorrectionDouble(inputs, { rolloutIs: 'token', rolloutIsThreshold: null });
  expect(without).toEqual(rolloutCorrectionDouble(inputs, {}));
  expect(without.rolloutIsWeights).toBeNull();
});

describe('refuses', () => {
  const inputs = ratios([[0, 0]]);
  test.each<[object, RegExp]>([
    [{ rolloutIs: 'row' }, /rolloutIs: expected token, sequence or null but got "row"/],
    [{ rolloutIs: 'token', rolloutIsThreshold: true }, /rolloutIsThreshold: expected a number > 0.*got true/],
    [{ rolloutIs: 'token', rolloutIsThreshold: 0 }, /rolloutIsThreshold/],
    [{ rolloutIs: 'token', rolloutIsThreshold: '' }, /rolloutIsThreshold/],
    [{ rolloutIs: 'token', rolloutIsThreshold: '2_1' }, /0 < lower <= upper/],
    [{ rolloutIs: 'token', rolloutIsThreshold: '0_1' }, /0 < lower <= upper/],
    [{ rolloutIs: 'token', rolloutIsThreshold: 'a_1' }, /rolloutIsThreshold/],
    [{ rolloutIsBatchNormalize: 1, rolloutIs: 'token' }, /rolloutIsBatchNormalize: expected true or false/],
    [{ rolloutRs: 'token_k1' }, /rolloutRsThreshold: rolloutRs token_k1 needs one/],
    [{ rolloutRs: '', rolloutRsThreshold: 1 }, /rolloutRs: expected one or more of token_k1/],
    [{ rolloutRs: 'seq_max_k1', rolloutRsThreshold: 1 }, /unknown criterion 'seq_max_k1'/],
    [{ rolloutRs: 'token', rolloutRsThreshold: 1 }, /unknown criterion 'token'; there are token_k1/],
    [{ rolloutRs: 'token_k2', rolloutRsThreshold: '0.5_2' }, /token_k2 has an upper bound alone/],
    [{ rolloutRs: 'token_k3', rolloutRsThreshold: -1 }, /expected a number > 0 but got '-1'/],
    [{ rolloutRs: 'token_k1', rolloutRsThreshold: '1.2_0.9' }, /0 < lower <= upper/],
    [{ rolloutRs: 'token_k1', rolloutRsThreshold: 0.5 }, /one number >= 1/],
    [{ rolloutRs: 'token_k1', rolloutRsThreshold: true }, /expected a number or a string but got true/],
    [{ rolloutRs: 'token_k2,token_k3', rolloutRsThreshold: '1,2,3' }, /expected 1 threshold for all or 2/],
    [{ rolloutRs: 'token_k2', rolloutRsThreshold: ' , ' }, /but got 0/],
    [{ lossType: 'ppo' }, /lossType: expected ppo_clip or reinforce/],
    [{ rollout_is: 'token' }, /unknown option 'rollout_is'; did you mean 'rolloutIs'/],
  ])('%j', (options, message) => {
    expect(() => rolloutCorrectionDouble(inputs, options)).toThrow(message);
  });

  test('no valid token, wrong lengths, missing columns', () => {
    expect(() => rolloutCorrectionDouble(ratios([[null], []]))).toThrow(/the 2 sequences have none/);
    expect(() => rolloutCorrectionDouble({ ...inputs, logProbs: [1] })).toThrow(
      /logProbs: expected 2 entries/,
    );
    const batch = Batch.fromSequences([[1]], [[2]], { oldLogProbs: [0] });
    expect(() => rolloutCorrection(batch)).toThrow(/no column 'rolloutLogProbs'/);
  });
});

describe('on a batch', () => {
  const batch = Batch.fromSequences([[1], [2]], [[3, 4], [5]], {
    oldLogProbs: [-1, -2, -3],
    rolloutLogProbs: [-1, -1, -1],
    responseMask: [1, 1, 1],
  });

  test('rejection changes the mask, weights become a column, also over older ones', () => {
    const options = { rolloutIs: 'token', rolloutRs: 'seq_sum_k1', rolloutRsThreshold: 3 } as const;
    const { batch: corrected, metrics } = rolloutCorrection(batch, options);
    expect([...corrected.get('responseMask')]).toEqual([1, 1, 0]);
    expect(corrected.get('rolloutIsWeights')).toEqual(Float32Array.from([1, Math.exp(-1), Math.exp(-2)]));
    expect([...batch.get('responseMask')]).toEqual([1, 1, 1]);
    expect(metrics['rollout_corr/rollout_rs_masked_fraction']).toBeCloseTo(1 / 3, 7);
    const again = rolloutCorrection(corrected, { rolloutIs: 'sequence' }).batch;
    expect(again.get('rolloutIsWeights')).toEqual(Float32Array.from([Math.exp(-1), Math.exp(-1), 0]));
  });

  test('nothing asked for: metrics alone', () => {
    const { batch: same, metrics } = rolloutCorrection(batch, rolloutCorrectionPreset('disabled'));
    expect(same.has('rolloutIsWeights')).toBe(false);
    expect(Object.keys(metrics)).toContain('rollout_corr/chi2_seq');
    expect(metrics['rollout_corr/kl']).toBeCloseTo(1, 7);
  });
});

describe('presets', () => {
  test('every one is valid and can be overridden', () => {
    for (const name of PRESET_NAMES) {
      const preset = rolloutCorrectionPreset(name);
      expect(preset.bypassMode).toBe(name.startsWith('bypass'));
      expect(() => rolloutCorrectionDouble(ratios([[0]]), preset)).not.toThrow();
    }
    expect(rolloutCorrectionPreset('bypass_pg_geo_rs_seq_tis', { rolloutIsThreshold: 5 })).toEqual({
      rolloutIs: 'sequence',
      rolloutIsThreshold: 5,
      rolloutIsBatchNormalize: false,
      rolloutRs: 'seq_mean_k1',
      rolloutRsThreshold: '0.999_1.001',
      bypassMode: true,
      lossType: 'reinforce',
    });
    expect(() => rolloutCorrectionPreset('tis')).toThrow(/unknown preset "tis": expected one of disabled/);
  });
});
