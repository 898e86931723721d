import { policyLoss } from '../../../ts/actor/loss_probe';
import { type Preparation, preparationOf } from '../../../ts/actor/stepwise_update';
import { resolvePolicyLoss } from '../../../ts/actor/update_options';
import { checkPolicyLoss } from '../../../ts/algorithms/policy_losses/check';
import { evaluatePolicyLoss } from '../../../ts/algorithms/policy_losses/evaluate';
import {
  type PolicyLossFunction,
  type PolicyLossFunctionInputs,
  policyLossNames,
  registeredPolicyLoss,
  registerPolicyLoss,
} from '../../../ts/algorithms/policy_losses/registry';
import { Batch } from '../../../ts/batch/batch';
import { vanillaInTypeScript } from '../../helpers/policy_losses';

const zeros = (inputs: PolicyLossFunctionInputs): number[] => Array.from(inputs.logProbs, () => 0);

/** (lp − old)² − A lp + A H / 2 */
const smooth: PolicyLossFunction = ({ logProbs, oldLogProbs, advantages, entropy }) => {
  const each = (f: (lp: number, old: number, a: number, h: number) => number): number[] =>
    Array.from(logProbs, (lp, t) =>
      f(lp, oldLogProbs[t] as number, advantages[t] as number, entropy[t] as number),
    );
  return {
    loss: each((lp, old, a, h) => (lp - old) ** 2 - a * lp + (a * h) / 2),
    gradLogProbs: each((lp, old, a) => 2 * (lp - old) - a),
    gradEntropy: each((_lp, _old, a) => a / 2),
  };
};

/** A loss through the mean log ratio of each sequence: every log-prob has a part in every token's loss. */
const coupled: PolicyLossFunction = ({ offsets, responseMask, logProbs, oldLogProbs }) => {
  const loss = new Float64Array(logProbs.length);
  const gradLogProbs = new Float64Array(logProbs.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    const tokens = [];
    for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++)
      if (responseMask[t]) tokens.push(t);
    const mean =
      tokens.reduce((sum, t) => sum + (logProbs[t] as number) - (oldLogProbs[t] as number), 0) /
      tokens.length;
    for (const t of tokens) {
      loss[t] = Math.exp(mean);
      gradLogProbs[t] = Math.exp(mean); // n tokens x e^mean / n
    }
  }
  return { loss, gradLogProbs };
};

describe('checkPolicyLoss', () => {
  test.each([
    ['smooth', smooth],
    ['clipped', vanillaInTypeScript],
    ['coupled within sequences', coupled],
  ])('passes right derivatives: %s', (_name, loss) => {
    expect(checkPolicyLoss(loss).error).toBeLessThan(1e-3);
  });

  test('passes either side of a kink, and nothing beyond', () => {
    const at = { offsets: [0, 1], responseMask: [1], logProbs: [-1], oldLogProbs: [-1], entropy: [0] };
    const kinked =
      (slope: number): PolicyLossFunction =>
      ({ logProbs, oldLogProbs }) => ({
        loss: [Math.abs((logProbs[0] as number) - (oldLogProbs[0] as number))],
        gradLogProbs: [slope],
      });
    for (const slope of [-1, 0, 1]) expect(checkPolicyLoss(kinked(slope), at).error).toBeLessThan(1e-6);
    expect(() => checkPolicyLoss(kinked(1.1), at)).toThrow(/derivative 1.1/);
  });

  test('passes losses that are computed in float32', () => {
    const single: PolicyLossFunction = (inputs) => {
      const { loss, gradLogProbs } = vanillaInTypeScript(inputs);
      return { loss: Float32Array.from(loss), gradLogProbs: Float32Array.from(gradLogProbs) };
    };
    expect(checkPolicyLoss(single).error).toBeLessThan(1e-3);
  });

  test.each<[string, (ratio: number, advantage: number) => boolean]>([
    ['the upper bound', (ratio, advantage) => ratio > 1.2 && advantage > 0],
    ['the lower bound', (ratio, advantage) => ratio < 0.8 && advantage < 0],
    ['the bound for negative advantages', (ratio, advantage) => ratio > 2 && advantage < 0],
  ])('the example has tokens beyond %s: a gradient that is not clipped there is found', (_, beyond) => {
    let tokens = 0;
    const forgets: PolicyLossFunction = (inputs) => {
      const { loss, gradLogProbs } = vanillaInTypeScript(inputs);
      return {
        loss,
        gradLogProbs: Array.from(gradLogProbs, (slope, t) => {
          const ratio = Math.exp((inputs.logProbs[t] as number) - (inputs.oldLogProbs[t] as number));
          const advantage = inputs.advantages[t] as number;
          if (!inputs.responseMask[t] || !beyond(ratio, advantage)) return slope as number;
          tokens++;
          return -advantage * ratio * (inputs.rolloutIsWeights?.[t] ?? 1);
        }),
      };
    };
    expect(() => checkPolicyLoss(forgets)).toThrow(/'forgets' returned the derivative .* by logProbs/);
    expect(tokens).toBeGreaterThan(0);
    expect(checkPolicyLoss(vanillaInTypeScript).error).toBeLessThan(1e-5);
  });

  test('the distance of the differences is 1e-3 unless given', () => {
    const cubic: PolicyLossFunction = ({ logProbs }) => ({
      loss: Array.from(logProbs, (lp) => lp ** 3),
      gradLogProbs: Array.from(logProbs, (lp) => 3 * lp ** 2),
    });
    const { error } = checkPolicyLoss(cubic);
    expect(error).toBe(checkPolicyLoss(cubic, {}, { step: 1e-3 }).error);
    expect(error).not.toBe(checkPolicyLoss(cubic, {}, { step: 2e-3 }).error);
  });

  test('names the worst entry', () => {
    const wrong: PolicyLossFunction = (inputs) => {
      const result = smooth(inputs);
      const gradLogProbs = Array.from(result.gradLogProbs);
      gradLogProbs[7] = (gradLogProbs[7] as number) + 0.01;
      gradLogProbs[9] = -(gradLogProbs[9] as number);
      return { ...result, gradLogProbs };
    };
    expect(() => checkPolicyLoss(wrong)).toThrow(
      /'wrong' returned the derivative .* by logProbs\[9\], but central/,
    );
    const forgotten: PolicyLossFunction = (inputs) => ({ ...smooth(inputs), gradEntropy: null });
    expect(() => checkPolicyLoss(forgotten)).toThrow(/the derivative 0 by entropy\[\d+\]/);
    expect(checkPolicyLoss(forgotten, {}, { tolerance: 10 })).toMatchObject({ by: 'entropy', returned: 0 });
    const uneven: PolicyLossFunction = ({ logProbs }) => ({
      loss: Array.from(logProbs, (lp) => Math.sqrt(lp + 1)),
      gradLogProbs: Array.from(logProbs, () => 1),
    });
    const at = { logProbs: [-1], offsets: [0, 1], responseMask: [1] };
    expect(() => checkPolicyLoss(uneven, at)).toThrow(/differences give NaN/);
  });
});

describe('what a function returns', () => {
  const inputs: PolicyLossFunctionInputs = {
    offsets: [0, 2, 2, 4],
    responseMask: [1, 0, 1, 1],
    logProbs: [-1, -1, -1, -1],
    entropy: [1, 1, 1, 1],
    oldLogProbs: [-1, -1, -1, -1],
    advantages: [1, 1, 1, 1],
    globalTokens: 3,
    globalSequences: 3,
    options: {
      clipRatioLow: 0.2,
      clipRatioHigh: 0.2,
      clipRatioC: 3,
      aggregation: 'token-mean',
      scaleFactor: 0,
      extra: {},
      kwargs: {},
    },
  };
  const evaluate = (result: unknown) => evaluatePolicyLoss('mine', () => result as never, inputs);

  test('is read under the mask alone', () => {
    const result = evaluate({ loss: [1, Number.NaN, 2, 3], gradLogProbs: [1, Infinity, 2, 3] });
    expect([...result.loss]).toEqual([1, 0, 2, 3]);
    expect([...result.gradLogProbs]).toEqual([1, 0, 2, 3]);
    expect(result.gradEntropy).toBeNull();
    expect(result.metrics).toEqual({});
  });

  test.each<[string, unknown, string, RegExp]>([
    ['nothing', undefined, 'INVALID_ARGUMENT', /'mine' must return \{ loss, gradLogProbs \} at once/],
    ['a promise', Promise.resolve({}), 'INVALID_ARGUMENT', /returned a promise/],
    ['no loss', { gradLogProbs: [] }, 'INVALID_ARGUMENT', /expected loss with 4 entries.*got undefined/],
    [
      'wrong length',
      { loss: [0, 0, 0, 0], gradLogProbs: [0] },
      'INVALID_ARGUMENT',
      /expected gradLogProbs with 4 entries, one per response token, but got 1 entries/,
    ],
    [
      'NaN',
      { loss: [0, 0, 0, 0], gradLogProbs: [0, 0, 0, Number.NaN] },
      'NON_FINITE',
      /returned NaN in gradLogProbs\[3\] \(sequence 2 of the mini-batch, response token 1\)/,
    ],
    ['beyond float32', { loss: [1e39, 0, 0, 0], gradLogProbs: [] }, 'NON_FINITE', /1e\+39 in loss\[0\]/],
    [
      'no number',
      { loss: [0, 0, 0, 0], gradLogProbs: [0, 0, 0, 0], gradEntropy: ['x', 0, 0, 0] },
      'NON_FINITE',
      /gradEntropy\[0\]/,
    ],
    [
      'bad metrics',
      { loss: [0, 0, 0, 0], gradLogProbs: [0, 0, 0, 0], metrics: { a: '1' } },
      'INVALID_ARGUMENT',
      /metrics.a to be a number/,
    ],
  ])('%s is refused', (_name, result, code, message) => {
    expect(() => evaluate(result)).toThrow(
      expect.objectContaining({ code, message: expect.stringMatching(message) }),
    );
    expect(() => evaluate(result)).toThrow(/no step was taken/);
  });

  test('an exception keeps its cause', () => {
    const cause = new RangeError('off the map');
    const failing: PolicyLossFunction = () => {
      throw cause;
    };
    expect(() => evaluatePolicyLoss('mine', failing, inputs)).toThrow(
      expect.objectContaining({
        cause,
        message: expect.stringContaining(`'mine' threw: off the map, at ${__filename}:203; no step`),
      }),
    );
  });
});

describe('registry', () => {
  test('takes a function once per name, and none of the core', () => {
    const loss: PolicyLossFunction = (inputs) => ({ loss: zeros(inputs), gradLogProbs: zeros(inputs) });
    registerPolicyLoss('registry test', loss);
    registerPolicyLoss('registry test', loss);
    expect(registeredPolicyLoss('registry test')).toBe(loss);
    expect(policyLossNames()).toContain('registry test');
    expect(resolvePolicyLoss('x', { mode: 'registry test' }, 1).mode).toBe('registry test');
    for (const name of ['registry test', 'vanilla', 'bypass_mode', 'linear'])
      expect(() => registerPolicyLoss(name, smooth)).toThrow(/is taken: choose another name than vanilla/);
    expect(() => registerPolicyLoss('x', 1 as never)).toThrow(/expected a function for 'x'/);
  });

  test.each([
    ['tauPos', 0, 'a number > 0'],
    ['tauNeg', -1, 'a number > 0'],
    ['droBeta', 0, 'a number > 0'],
    ['clipCovRatio', 5, 'a number from 0 to 1'],
    ['klCovRatio', -1, 'a number from 0 to 1'],
    ['ppoKlCoef', -1, 'a number >= 0'],
  ])('%s of %s is refused', (name, value, expected) => {
    expect(() => resolvePolicyLoss('x', { [name]: value }, 1)).toThrow(
      `[x] ${name}: expected ${expected} but got ${value}`,
    );
  });

  test('options of a loss of one’s own reach it, and no other loss takes any', () => {
    const scaled: PolicyLossFunction = (inputs) => {
      const factor = inputs.options.kwargs['factor'] as number;
      const column = Array.from(inputs.logProbs, () => factor);
      return { loss: column, gradLogProbs: column };
    };
    registerPolicyLoss('scaled', scaled);
    const loss = resolvePolicyLoss('x', { mode: 'scaled', kwargs: { factor: 3 } }, 1);
    expect(JSON.stringify(loss)).not.toContain('factor');
    const preparation = preparationOf(loss, {}, { factor: 3 }) as Preparation;
    const columns = { oldLogProbs: [-1], advantages: [1] };
    const batch = Batch.fromSequences([[1]], [[2]], columns);
    const counts = { globalTokens: 1, globalSequences: 1 };
    const prepared = preparation.prepare(batch, Float32Array.of(-1), Float32Array.of(1), counts);
    expect([...(prepared.batch.get('givenLoss.values') as Float32Array)]).toEqual([3]);
    expect(() => resolvePolicyLoss('x', { kwargs: { factor: 3 } }, 1)).toThrow(
      '[x] kwargs: only a loss from registerPolicyLoss reads them, and the mode is vanilla',
    );
    expect(() => resolvePolicyLoss('x', { mode: 'scaled', kwargs: [1] as never }, 1)).toThrow(
      'kwargs: expected an object but got [1]',
    );
  });

  test('a term of the loss needs its array, also before any worker starts', async () => {
    const inputs = { logProbs: [-1], oldLogProbs: [-1], advantages: [1] };
    await expect(policyLoss('vanilla', inputs, { useKlLoss: true })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('refLogProbs'),
    });
    await expect(policyLoss('vanilla', inputs, { entropyCoeff: 0.1 })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('entropy'),
    });
  });

  test('an unknown mode lists what there is', () => {
    expect(() => resolvePolicyLoss('x', { mode: 'ppo' }, 1)).toThrow(
      /mode: expected one of vanilla.*bypass_mode.*got "ppo" \(registerPolicyLoss/,
    );
    expect(() => resolvePolicyLoss('x', { mode: 'linear' }, 1)).toThrow(/got "linear"/);
    expect(() => resolvePolicyLoss('x', { rolloutCorrection: {} }, 1)).toThrow(
      /only mode bypass_mode uses it/,
    );
    expect(() =>
      resolvePolicyLoss('x', { mode: 'bypass_mode', rolloutCorrection: { rolloutRs: 'token_k2' } }, 1),
    ).toThrow(/rolloutRsThreshold: rolloutRs token_k2 needs one/);
  });
});
