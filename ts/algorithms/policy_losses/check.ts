import {
  badOption,
  checkOptionNames,
  numberOption,
  requireNumbers,
  requireOptions,
} from '../../base/check_options';
import { show } from '../../base/text';
import { TroupeError } from '../../errors';
import type { NumberArray } from '../ragged';
import { evaluatePolicyLoss } from './evaluate';
import type { PolicyLossFunction, PolicyLossFunctionInputs } from './registry';

/** The entry where the returned derivative is farthest from the numerical one. */
export interface PolicyLossCheck {
  /** By which input the derivative is. */
  by: 'logProbs' | 'entropy';
  /** Response token. */
  index: number;
  returned: number;
  expected: number;
  /** |returned − expected| / max(1, |expected|) */
  error: number;
}

const COLUMNS = [
  'logProbs',
  'entropy',
  'oldLogProbs',
  'advantages',
  'refLogProbs',
  'rolloutIsWeights',
  'rolloutLogProbs',
] as const;

export interface PolicyLossCheckOptions {
  /** Distance of the central differences, 1e-3: large enough for losses computed in float32. */
  step?: number;
  /** Largest error that passes, 1e-3. */
  tolerance?: number;
}

/**
 * Compares the derivatives that a policy loss returns with central differences of the sum of its losses under the mask, at
 * every token of `inputs` (default: three short sequences, masked tokens, ratios from about 0.3 to 3.2 with advantages of both signs on
 * either side of the clip range 0.8 to 1.2 and beyond clipRatioC 2). At a kink, such as a clip bound, anything between the two one-sided slopes passes. A loss with stop-gradient
 * factors has no such derivative: check it with the factor as an argument.
 * Options of the loss's own go into `inputs.options.kwargs`.
 * @returns the worst entry
 * @throws TroupeError INVALID_ARGUMENT naming the worst entry when it is off by more than the tolerance
 */
export function checkPolicyLoss(
  loss: PolicyLossFunction,
  inputs: Partial<PolicyLossFunctionInputs> = {},
  options: PolicyLossCheckOptions = {},
): PolicyLossCheck {
  const where = 'checkPolicyLoss';
  if (typeof loss !== 'function') throw badOption(where, `expected a function but got ${show(loss)}`);
  checkOptionNames(where, options, ['step', 'tolerance']);
  const step = numberOption(where, 'step', options.step, 1e-3, { above: 0 });
  const tolerance = numberOption(where, 'tolerance', options.tolerance, 1e-3, { min: 0 });
  const name = loss.name === '' ? 'fn' : loss.name;
  const example = exampleInputs();
  checkOptionNames(where, inputs, Object.keys(example));
  const at: PolicyLossFunctionInputs = { ...example, ...inputs };
  checkInputs(where, inputs, at);
  const given = evaluatePolicyLoss(name, loss, at);
  const total = (by: 'logProbs' | 'entropy', index: number, move: number): number => {
    const column = Float64Array.from(at[by]);
    column[index]! += move;
    // Not rounded to float32: the differences would drown in it.
    const losses = loss({ ...at, [by]: column }).loss;
    let sum = 0;
    for (let t = 0; t < losses.length; t++) if (at.responseMask[t]) sum += losses[t] as number;
    return sum;
  };
  let worst: PolicyLossCheck = { by: 'logProbs', index: -1, returned: 0, expected: 0, error: -1 };
  for (const by of ['logProbs', 'entropy'] as const) {
    const gradient = by === 'logProbs' ? given.gradLogProbs : given.gradEntropy;
    for (let index = 0; index < at.responseMask.length; index++) {
      if (!at.responseMask[index]) continue;
      const returned = gradient?.[index] ?? 0;
      const [below, here, above] = [-step, 0, step].map((move) => total(by, index, move)) as [
        number,
        number,
        number,
      ];
      const expected = slope(returned, (here - below) / step, (above - here) / step, tolerance);
      const error = Math.abs(returned - expected) / Math.max(1, Math.abs(expected));
      // NaN is the worst of all.
      if (!Number.isNaN(worst.error) && !(error <= worst.error))
        worst = { by, index, returned, expected, error };
    }
  }
  if (!(worst.error <= tolerance)) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[policy loss] '${name}' returned the derivative ${worst.returned} by ${worst.by}[${worst.index}], but central ` +
        `differences give ${worst.expected} (error ${worst.error.toExponential(1)}, tolerance ${tolerance})`,
    );
  }
  return worst;
}

/** @throws TroupeError INVALID_ARGUMENT naming the array */
function checkInputs(
  where: string,
  given: Partial<PolicyLossFunctionInputs>,
  at: PolicyLossFunctionInputs,
): void {
  for (const name of ['responseMask', 'logProbs', 'entropy'] as const)
    if (at[name] === undefined)
      throw badOption(where, `${name}: expected an array of numbers but got undefined`);
  requireNumbers(where, 'responseMask', at.responseMask);
  const { length } = at.responseMask;
  for (const name of COLUMNS) if (given[name] !== undefined) requireNumbers(where, name, given[name], length);
  requireNumbers(where, 'offsets', at.offsets);
  const offsets = at.offsets.length === 0 ? [] : Array.from(at.offsets);
  if (
    offsets[0] !== 0 ||
    offsets.at(-1) !== length ||
    offsets.some((o, i) => i > 0 && !(o >= (offsets[i - 1] as number)))
  )
    throw badOption(where, `offsets: expected [b+1] rising from 0 to ${length} but got ${show(offsets)}`);
  for (const name of ['globalTokens', 'globalSequences'] as const)
    numberOption(where, name, at[name], 0, { min: 0 });
  requireOptions(`${where}.options`, at.options);
}

/** The central difference; at a kink the slope nearest to the returned one that lies between the one-sided ones. */
function slope(returned: number, left: number, right: number, tolerance: number): number {
  const central = (left + right) / 2;
  if (Math.abs(right - left) <= tolerance * Math.max(1, Math.abs(central))) return central;
  return Math.min(Math.max(returned, Math.min(left, right)), Math.max(left, right));
}

/** Quasi-random values in [-1, 1) that differ between columns: fractional parts of multiples of √2, √3, ... */
const spreadOut = (length: number, irrational: number): Float64Array =>
  Float64Array.from({ length }, (_, t) => 2 * (((t + 1) * irrational) % 1) - 1);

function exampleInputs(): PolicyLossFunctionInputs {
  const offsets = [0, 6, 7, 15];
  const length = 15;
  const column = (irrational: number, scale: number, centre: number): NumberArray =>
    spreadOut(length, irrational).map((x) => centre + scale * x);
  const oldLogProbs = column(Math.SQRT2, 1, -1.5);
  const moved = spreadOut(length, Math.sqrt(3)).map((x) => 1.2 * x);
  const responseMask = Uint8Array.from({ length }, (_, t) => (t % 5 === 3 ? 0 : 1));
  return {
    offsets,
    responseMask,
    logProbs: moved.map((x, t) => (oldLogProbs[t] as number) + x),
    entropy: column(Math.sqrt(5), 0.8, 1.2),
    oldLogProbs,
    advantages: column(Math.sqrt(7), 1.5, 0),
    refLogProbs: column(Math.sqrt(11), 1, -1.5),
    rolloutIsWeights: column(Math.sqrt(13), 0.5, 1),
    rolloutLogProbs: column(Math.sqrt(17), 1, -1.5),
    globalTokens: responseMask.reduce((sum, bit) => sum + bit, 0),
    globalSequences: offsets.length - 1,
    options: {
      clipRatioLow: 0.2,
      clipRatioHigh: 0.2,
      clipRatioC: 2,
      aggregation: 'token-mean',
      scaleFactor: 0,
      extra: {},
      kwargs: {},
    },
  };
}
