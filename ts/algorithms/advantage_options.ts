import { badOption, checkOptionNames, flagOption, numberOption } from '../base/check_options';
import type { AdvantageConfig } from './advantage_types';

const NUMBERS = ['gamma', 'lam', 'egpoLambda', 'egpoAlpha', 'gpgFNorm'] as const;
const FLAGS = ['normAdvByStdInGrpo', 'handleZeroTail'] as const;
const LISTS = ['gdpoRewardKeys', 'gdpoRewardWeights'] as const;

/** @throws TroupeError INVALID_ARGUMENT naming the option that does not exist or is of another kind */
export function checkAdvantageConfig(config: AdvantageConfig): void {
  checkOptionNames('advantages', config, [...NUMBERS, ...FLAGS, ...LISTS, 'kwargs']);
  if (Object.keys(config.kwargs ?? {}).length > 0)
    throw badOption('advantages', 'kwargs: only an estimator from registerAdvantageEstimator reads them');
  for (const name of NUMBERS) numberOption('advantages', name, config[name], 0);
  for (const name of FLAGS) flagOption('advantages', name, config[name], false);
  for (const name of LISTS) {
    if (config[name] !== undefined && !Array.isArray(config[name]))
      throw badOption('advantages', `${name}: expected an array but got ${String(config[name])}`);
  }
}
