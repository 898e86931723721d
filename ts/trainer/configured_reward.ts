import type { ResolvedConfig } from '../config/config';
import { ConfigError } from '../errors';
import { loadExport, loadRewardFunction } from '../reward/load';
import { createRewardManager } from '../reward/manager';
import { rewardByDataSource } from '../reward/reward';
import type {
  BatchRewardFunction,
  RewardFunction,
  RewardManager,
  RewardManagerFactory,
} from '../reward/types';
import { rewardOptions } from './settings';

/**
 * The manager of the section `reward`, around `given`, else `reward.custom_reward_function`, else the functions
 * registered by data source (`byDataSource`).
 * @throws ConfigError when a module cannot be loaded, or the manager cannot work with the function
 */
export function configuredReward(
  config: ResolvedConfig,
  given?: RewardFunction | BatchRewardFunction,
): { reward: RewardManager; byDataSource: boolean } {
  const { custom_reward_function, reward_manager } = config.reward;
  const { path, name } = custom_reward_function;
  const byDataSource = given === undefined && path === null;
  const fn = given ?? (path === null ? rewardByDataSource : loadRewardFunction(path, name));
  if (byDataSource && reward_manager.source === 'register' && reward_manager.name === 'batch') {
    const key = 'reward.custom_reward_function.path';
    throw new ConfigError(
      `${key}: the manager batch needs a function that scores a batch, and the built-in ones score one response: ` +
        'give its module, or pass `batchReward` to Trainer',
      key,
    );
  }
  const source = given !== undefined ? {} : { module: path === null ? null : { path, name } };
  const options = { ...rewardOptions(config), ...source };
  const { module } = reward_manager;
  if (reward_manager.source === 'register') {
    return { reward: createRewardManager(reward_manager.name, fn, options), byDataSource };
  }
  const factory = loadExport(
    module.path,
    module.name,
    'reward.reward_manager.module',
  ) as RewardManagerFactory;
  return { reward: factory(fn, options), byDataSource };
}
