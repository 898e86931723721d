import { reasonOf, show } from '../base/text';
import { thrownAt } from '../base/thrown_at';
import { TroupeError } from '../errors';
import type { AdvantageConfig, AdvantageEstimator, AdvantageInputs, TokenColumn } from './advantage_types';
import type { NumberArray } from './ragged';

const isArray = (value: unknown): value is NumberArray =>
  typeof value === 'object' && value !== null && typeof (value as { length?: unknown }).length === 'number';

/**
 * Calls a user's estimator and copies what it returns into columns from `allocate`.
 * @throws TroupeError INVALID_ARGUMENT when it throws or returns something else than promised, NON_FINITE when a number under the
 * mask is NaN or infinite; the message names the estimator, the array and the token
 */
export function runRegisteredEstimator<T extends TokenColumn>(
  name: string,
  estimator: AdvantageEstimator,
  inputs: AdvantageInputs,
  config: AdvantageConfig,
  allocate: (length: number) => T,
): { advantages: T; returns: T } {
  const where = `[advantages] estimator '${name}'`;
  let result: unknown;
  try {
    result = estimator(inputs, config);
  } catch (cause) {
    if (cause instanceof TroupeError) throw cause;
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `${where} threw: ${reasonOf(cause)}${thrownAt(cause, __filename)}`,
      { cause },
    );
  }
  if (typeof result !== 'object' || result === null || result instanceof Promise) {
    const got = result instanceof Promise ? 'a promise' : show(result);
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `${where} must return { advantages, returns } at once, but returned ${got}`,
    );
  }
  const given = result as Record<'advantages' | 'returns', unknown>;
  const tokens = inputs.responseMask.length;
  const column = (key: 'advantages' | 'returns'): T => {
    const value = given[key];
    if (!isArray(value) || value.length !== tokens) {
      const got = isArray(value) ? `${value.length} entries` : show(value);
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `${where}: expected ${key} with ${tokens} entries, one per response token, but got ${got}`,
      );
    }
    checkFinite(where, key, value, inputs);
    const out = allocate(tokens);
    out.set(value);
    return out;
  };
  const advantages = column('advantages');
  return { advantages, returns: given.returns === given.advantages ? advantages : column('returns') };
}

function checkFinite(
  where: string,
  key: string,
  value: NumberArray,
  { offsets, responseMask }: AdvantageInputs,
): void {
  for (let i = 0; i + 1 < offsets.length; i++) {
    const start = offsets[i] as number;
    for (let t = start; t < (offsets[i + 1] as number); t++) {
      if (!responseMask[t] || Number.isFinite(value[t])) continue;
      throw new TroupeError(
        'NON_FINITE',
        `${where} returned ${String(value[t])} in ${key}[${t}] (sequence ${i}, response token ${t - start}), expected a finite number`,
      );
    }
  }
}
