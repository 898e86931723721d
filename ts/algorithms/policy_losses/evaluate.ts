import { reasonOf, show } from '../../base/text';
import { thrownAt } from '../../base/thrown_at';
import { TroupeError } from '../../errors';
import type { NumberArray } from '../ragged';
import type { PolicyLossFunction, PolicyLossFunctionInputs } from './registry';

/** A checked result: float32, 0 outside the mask. */
export interface EvaluatedPolicyLoss {
  loss: Float32Array;
  gradLogProbs: Float32Array;
  gradEntropy: Float32Array | null;
  metrics: Record<string, number>;
}

const isArray = (value: unknown): value is NumberArray =>
  typeof value === 'object' && value !== null && typeof (value as { length?: unknown }).length === 'number';

/**
 * Calls a user's policy loss.
 * @throws TroupeError INVALID_ARGUMENT when it throws or returns something else than promised, NON_FINITE when a value under
 * the mask is NaN or infinite; the message names the loss, the array and the token
 */
export function evaluatePolicyLoss(
  name: string,
  fn: PolicyLossFunction,
  inputs: PolicyLossFunctionInputs,
): EvaluatedPolicyLoss {
  const where = `[policy loss] '${name}'`;
  const fail = (message: string): TroupeError =>
    new TroupeError('INVALID_ARGUMENT', `${where}${message}; no step was taken on this mini-batch`);
  let result: unknown;
  try {
    result = fn(inputs);
  } catch (error) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `${where} threw: ${reasonOf(error)}${thrownAt(error, __filename)}; no step was taken on this mini-batch`,
      { cause: error },
    );
  }
  if (typeof result !== 'object' || result === null || result instanceof Promise)
    throw fail(
      ` must return { loss, gradLogProbs } at once, but returned ${result instanceof Promise ? 'a promise' : show(result)}`,
    );
  const { loss, gradLogProbs, gradEntropy, metrics } = result as Record<string, unknown>;
  const column = (key: string, value: unknown): Float32Array => {
    const length = inputs.responseMask.length;
    if (!isArray(value) || value.length !== length) {
      const got = isArray(value) ? `${value.length} entries` : show(value);
      throw fail(`: expected ${key} with ${length} entries, one per response token, but got ${got}`);
    }
    return finite(where, key, value, inputs);
  };
  return {
    loss: column('loss', loss),
    gradLogProbs: column('gradLogProbs', gradLogProbs),
    gradEntropy:
      gradEntropy === undefined || gradEntropy === null ? null : column('gradEntropy', gradEntropy),
    metrics: checkMetrics(metrics, fail),
  };
}

function finite(
  where: string,
  key: string,
  value: NumberArray,
  { responseMask, offsets }: PolicyLossFunctionInputs,
): Float32Array {
  const out = new Float32Array(value.length);
  let row = 0;
  for (let t = 0; t < out.length; t++) {
    while ((offsets[row + 1] as number) <= t) row++;
    if (!responseMask[t]) continue;
    out[t] = value[t] as number;
    if (!Number.isFinite(out[t])) {
      throw new TroupeError(
        'NON_FINITE',
        `${where} returned ${String(value[t])} in ${key}[${t}] (sequence ${row} of the mini-batch, response token ` +
          `${t - (offsets[row] as number)}), expected a finite float32; no step was taken on this mini-batch`,
      );
    }
  }
  return out;
}

function checkMetrics(metrics: unknown, fail: (message: string) => TroupeError): Record<string, number> {
  if (metrics === undefined || metrics === null) return {};
  if (typeof metrics !== 'object') throw fail(`: expected metrics as an object but got ${show(metrics)}`);
  for (const [key, value] of Object.entries(metrics))
    if (typeof value !== 'number')
      throw fail(`: expected metrics.${key} to be a number but got ${show(value)}`);
  return metrics as Record<string, number>;
}
