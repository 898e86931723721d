import { TroupeError } from '../errors';
import { CODE_SOURCES, codeReward } from './code/code_reward';
import { PythonSandbox } from './code/python_sandbox';
import { once } from './code/runner';
import { exactMatch } from './exact_match';
import { gsm8k } from './gsm8k';
import type { RewardFunction } from './types';

const defaultCodeReward = codeReward(once(() => PythonSandbox.create()));

const registry = new Map<string, RewardFunction>([
  ['exact_match', exactMatch],
  ['gsm8k', gsm8k],
  ['openai/gsm8k', gsm8k],
  // A training run has its own settings; here the sandbox is the default one.
  ...CODE_SOURCES.map((source) => [source, defaultCodeReward] as const),
]);

/**
 * Makes a reward function available to rows whose `data_source` is that name, where neither `Trainer` nor
 * `reward.custom_reward_function` gives one for all rows.
 * @throws TroupeError INVALID_ARGUMENT when another function already has the name.
 */
export function registerRewardFunction(name: string, fn: RewardFunction): void {
  if ((registry.get(name) ?? fn) !== fn) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[reward] another reward function is already registered as '${name}': choose another name`,
    );
  }
  registry.set(name, fn);
}

/** The function registered under a name. */
export function rewardFunction(name: string): RewardFunction {
  const fn = registry.get(name);
  if (!fn) {
    throw new TroupeError(
      'INVALID_CONFIG',
      `[reward] no reward function is registered as '${name}'; registered: ${[...registry.keys()].join(', ')}. ` +
        'Set reward.custom_reward_function.path and name, pass `reward` to Trainer, or call registerRewardFunction',
    );
  }
  return fn;
}

/** Scores each sample with the function registered under its data source: verl's default_compute_score. */
export const rewardByDataSource: RewardFunction = (sample) => rewardFunction(sample.dataSource)(sample);
