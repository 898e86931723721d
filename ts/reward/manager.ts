import { ConfigError, TroupeError } from '../errors';
import type {
  BatchRewardFunction,
  RewardFunction,
  RewardManager,
  RewardManagerFactory,
  RewardManagerOptions,
} from './contract/types';
import { batchManager } from './managers/batch';
import { dapoManager } from './managers/dapo';
import { naiveManager } from './managers/naive';
import { primeManager } from './managers/prime';
import { rateLimitedManager } from './managers/rate_limited';

const registry = new Map<string, RewardManagerFactory>([
  ['naive', naiveManager],
  ['batch', batchManager],
  ['prime', primeManager],
  ['dapo', dapoManager],
  ['rate_limited', rateLimitedManager],
]);

/**
 * Makes a reward manager available as `reward.reward_manager.name`.
 * @throws TroupeError INVALID_ARGUMENT when another manager already has the name
 */
export function registerRewardManager(name: string, factory: RewardManagerFactory): void {
  if ((registry.get(name) ?? factory) !== factory) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[reward] another reward manager is already registered as '${name}': choose another name`,
    );
  }
  registry.set(name, factory);
}

/** Names that `reward.reward_manager.name` may have. */
export const rewardManagerNames = (): string[] => [...registry.keys()];

/** The manager registered under a name, around a reward function. */
export function createRewardManager(
  name: string,
  fn: RewardFunction | BatchRewardFunction,
  options: RewardManagerOptions = {},
): RewardManager {
  const factory = registry.get(name);
  if (factory) return factory(fn, options);
  const path = 'reward.reward_manager.name';
  throw new ConfigError(`${path}: expected one of ${rewardManagerNames().join(', ')}, got "${name}"`, path);
}
