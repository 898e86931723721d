import { resolve } from 'node:path';
import { ConfigError } from '../errors';
import { loadUserModule } from '../user_module';
import { rewardFunction } from './reward';
import type { RewardFunction } from './types';

const KEY = 'reward.custom_reward_function';

/**
 * The user's function: export `name` of the module at `path` (.js, .cjs, .mjs, and .ts where Node runs TypeScript),
 * relative paths from the working directory. Without a path, the function registered under `name`.
 */
export function loadRewardFunction(path: string | null, name: string): RewardFunction {
  if (path === null) return rewardFunction(name);
  const loaded = loadUserModule(path, `${KEY}.path`);
  const fn = loaded[name];
  if (typeof fn !== 'function') {
    const functions = Object.keys(loaded).filter((key) => typeof loaded[key] === 'function');
    throw new ConfigError(
      `[reward] ${KEY}.name: ${resolve(path)} exports no function '${name}'; it exports: ${functions.join(', ') || 'none'}`,
      `${KEY}.name`,
    );
  }
  return fn as RewardFunction;
}
