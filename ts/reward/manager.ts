import { checkOptionNames, requireNamed } from '../base/check_options';
import { ConfigError } from '../errors';
import { checkedManager } from './contract/manager_outcome';
import {
  type BuiltInManager,
  isBuiltInManager,
  registeredManager,
  unknownRewardManager,
} from './contract/manager_registry';
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

const BUILT_IN: Readonly<Record<BuiltInManager, RewardManagerFactory>> = {
  naive: naiveManager,
  batch: batchManager,
  prime: primeManager,
  dapo: dapoManager,
  // verl's has a name of its own and does what naive does.
  gdpo: naiveManager,
  rate_limited: rateLimitedManager,
};

const OPTIONS = [
  'timeoutMs',
  'onError',
  'kwargs',
  'concurrency',
  'module',
  'libraries',
  'numWorkers',
  'overlong',
  'limits',
] as const satisfies readonly (keyof RewardManagerOptions)[];

/** The built-in or registered manager of a name, around a reward function. @throws TroupeError INVALID_CONFIG for another name, INVALID_ARGUMENT for other arguments */
export function createRewardManager(
  name: string,
  fn: RewardFunction | BatchRewardFunction,
  options: RewardManagerOptions = {},
): RewardManager {
  requireNamed('createRewardManager', name, fn);
  // One of a program's own may have others.
  if (isBuiltInManager(name)) checkOptionNames('createRewardManager', options, OPTIONS);
  if (isBuiltInManager(name)) return BUILT_IN[name](fn, options);
  const factory = registeredManager(name);
  if (factory) return checkedManager(`'${name}'`, factory(fn, options));
  const path = 'reward.reward_manager.name';
  throw new ConfigError(`${path}: ${unknownRewardManager(name)}`, path);
}
