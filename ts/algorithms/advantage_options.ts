import { badOption, checkOptionNames, flagOption, numberOption, requireOptions } from '../base/check_options';
import { show } from '../base/text';
import type { AdvantageConfig } from './advantage_types';

const NUMBERS = ['gamma', 'lam', 'egpoLambda', 'egpoAlpha', 'gpgFNorm'] as const;
const FLAGS = ['normAdvByStdInGrpo', 'handleZeroTail'] as const;
const LISTS = { gdpoRewardKeys: 'string', gdpoRewardWeights: 'number' } as const;
const DIVISORS: readonly string[] = ['egpoAlpha', 'gpgFNorm'];

/** @throws TroupeError INVALID_ARGUMENT naming the option that does not exist or is of another kind */
export function checkAdvantageConfig(config: AdvantageConfig): void {
  checkOptionNames('advantages', config, [...NUMBERS, ...FLAGS, ...Object.keys(LISTS), 'kwargs']);
  if (config.kwargs !== undefined) requireOptions('advantages kwargs', config.kwargs);
  if (Object.keys(config.kwargs ?? {}).length > 0)
    throw badOption('advantages', 'kwargs: only an estimator from registerAdvantageEstimator reads them');
  for (const name of NUMBERS)
    numberOption('advantages', name, config[name], 1, DIVISORS.includes(name) ? { above: 0 } : {});
  for (const name of FLAGS) flagOption('advantages', name, config[name], false);
  for (const [name, kind] of Object.entries(LISTS) as [keyof typeof LISTS, string][]) {
    if (config[name] !== undefined && !Array.isArray(config[name]))
      throw badOption('advantages', `${name}: expected an array but got ${show(config[name])}`);
    const other = (config[name] as unknown[] | undefined)?.findIndex((entry) => typeof entry !== kind) ?? -1;
    if (other >= 0)
      throw badOption(
        'advantages',
        `${name}[${other}]: expected a ${kind} but got ${show(config[name]?.[other])}`,
      );
  }
}
