import { resolve } from 'node:path';
import { loadUserModule } from '../base/user_module';
import { ConfigError } from '../errors';
import type { RewardFunction } from './contract/types';
import { rewardFunction } from './reward';

/**
 * The function that the module at `path` (.js, .cjs, .mjs, and .ts where Node runs TypeScript) exports as `name`,
 * relative paths from the working directory. `key`: the section of the configuration, for messages.
 * @throws ConfigError when there is no such file, module or function
 */
export function loadExport(path: string | null, name: string, key: string): unknown {
  if (path === null) throw new ConfigError(`[reward] ${key}.path: expected a file, but it is not given`, key);
  const loaded = loadUserModule(path, `${key}.path`);
  const fn = loaded[name];
  if (typeof fn === 'function') return fn;
  const functions = Object.keys(loaded).filter((other) => typeof loaded[other] === 'function');
  throw new ConfigError(
    `[reward] ${key}.name: ${resolve(path)} exports no function '${name}'; it exports: ${functions.join(', ') || 'none'}`,
    `${key}.name`,
  );
}

/** The user's function, see {@link loadExport}. Without a path, the function registered under `name`. */
export function loadRewardFunction(path: string | null, name: string): RewardFunction {
  if (path === null) return rewardFunction(name);
  return loadExport(path, name, 'reward.custom_reward_function') as RewardFunction;
}
