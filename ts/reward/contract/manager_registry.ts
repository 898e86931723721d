// Names of reward managers, apart from the code of the built-in ones: checking a configuration needs no more.
import { requireNamed } from '../../base/check_options';
import { unknownName } from '../../base/nearest_name';
import { TroupeError } from '../../errors';
import type { RewardManagerFactory } from './types';

const BUILT_IN_MANAGERS = ['naive', 'batch', 'prime', 'dapo', 'gdpo', 'rate_limited'] as const;
export type BuiltInManager = (typeof BUILT_IN_MANAGERS)[number];

const registered = new Map<string, RewardManagerFactory>();

export const isBuiltInManager = (name: string): name is BuiltInManager =>
  (BUILT_IN_MANAGERS as readonly string[]).includes(name);

/**
 * Makes a reward manager available as `reward.reward_manager.name`.
 * @throws TroupeError INVALID_ARGUMENT when another manager already has the name, or this is no function
 */
export function registerRewardManager(name: string, factory: RewardManagerFactory): void {
  requireNamed('registerRewardManager', name, factory);
  if (isBuiltInManager(name) || (registered.get(name) ?? factory) !== factory) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[reward] another reward manager is already registered as '${name}': choose another name`,
    );
  }
  registered.set(name, factory);
}

/** Names that `reward.reward_manager.name` may have. */
export const rewardManagerNames = (): string[] => [...BUILT_IN_MANAGERS, ...registered.keys()];

/** What to say about a name that does not exist. */
export const unknownRewardManager = (name: string): string =>
  unknownName(rewardManagerNames(), name, 'registerRewardManager(name, factory)');

/** The user's manager of a name. */
export const registeredManager = (name: string): RewardManagerFactory | undefined => registered.get(name);
