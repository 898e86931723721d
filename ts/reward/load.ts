import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { ConfigError } from '../errors';
import { reasonOf } from '../text';
import { rewardFunction } from './reward';
import type { RewardFunction } from './types';

const KEY = 'reward.custom_reward_function';

function loadModule(path: string): Record<string, unknown> {
  const file = resolve(path);
  if (!existsSync(file))
    throw new ConfigError(`[reward] ${KEY}.path: there is no file ${file}`, `${KEY}.path`);
  try {
    return require(file) as Record<string, unknown>;
  } catch (error) {
    const typescript =
      /\.[cm]?ts$/.test(file) && !('typescript' in process.features && process.features.typescript);
    const hint = typescript
      ? ` (this Node, ${process.version}, cannot load TypeScript: use Node >= 22.18 or compile the file to JavaScript)`
      : '';
    const reason = reasonOf(error);
    throw new ConfigError(`[reward] ${KEY}.path: could not load ${file}: ${reason}${hint}`, `${KEY}.path`);
  }
}

/**
 * The user's function: export `name` of the module at `path` (.js, .cjs, .mjs, and .ts where Node runs TypeScript),
 * relative paths from the working directory. Without a path, the function registered under `name`.
 */
export function loadRewardFunction(path: string | null, name: string): RewardFunction {
  if (path === null) return rewardFunction(name);
  const loaded = loadModule(path);
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
