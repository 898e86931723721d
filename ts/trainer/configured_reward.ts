import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { reasonOf, show } from '../base/text';
import { thrownAt } from '../base/thrown_at';
import type { ResolvedConfig } from '../config/config';
import { needsRewardModel } from '../config/derived/roles';
import { ConfigError, TroupeError } from '../errors';
import { CODE_SOURCES } from '../reward/code/code_reward';
import type { CodeRunner } from '../reward/code/runner';
import { checkedManager } from '../reward/contract/manager_outcome';
import type {
  BatchRewardFunction,
  RewardFunction,
  RewardManager,
  RewardManagerFactory,
  RewardManagerOptions,
} from '../reward/contract/types';
import { loadExport } from '../reward/load';
import { createRewardManager } from '../reward/manager';
import { RewardProcess } from '../reward/scorers/reward_process';
import { rewardOptions } from '../roles/settings';
import { type DefaultReward, defaultReward } from './default_reward';

export interface ConfiguredReward {
  reward: RewardManager;
  /** What can be checked once the data sources are known, before training. */
  prepare: DefaultReward['prepare'];
}

/**
 * The manager of the section `reward`, around `given`, else `reward.custom_reward_function`, else the reward model
 * or the functions registered by data source. `runner`: of programs, where these are scored.
 * @throws ConfigError when a module cannot be loaded, or the manager cannot work with the function
 */
export function configuredReward(
  config: ResolvedConfig,
  runner: () => Promise<CodeRunner>,
  given?: RewardFunction | BatchRewardFunction,
): ConfiguredReward {
  const { custom_reward_function, reward_manager } = config.reward;
  const { path, name, python } = custom_reward_function;
  const usual = given === undefined && path === null ? defaultReward(config, runner) : null;
  const own = given === undefined && path !== null ? moduleReward(config, path) : null;
  const fn = given ?? usual?.reward ?? (own as ModuleReward).reward;
  if (usual && reward_manager.source === 'register' && reward_manager.name === 'batch') {
    const key = 'reward.custom_reward_function.path';
    throw new ConfigError(
      `${key}: the manager batch needs a function that scores a batch, and the built-in ones score one response: ` +
        'give its module, or pass `batchReward` to Trainer',
      key,
    );
  }
  const source = given !== undefined ? {} : { module: path === null ? null : { path, name, python } };
  const options = { ...rewardOptions(config, usual === null), ...source };
  const { module } = reward_manager;
  if (own && reward_manager.source === 'register' && reward_manager.name === 'prime') {
    // It has processes of its own; this one has shown that the module can be had.
    const prepare = (): Promise<void> => own.prepare([]).finally(() => own.close());
    return { reward: createRewardManager(reward_manager.name, fn, options), prepare };
  }
  const prepare = usual?.prepare ?? own?.prepare ?? (async () => undefined);
  if (usual && reward_manager.source === 'register' && reward_manager.name === 'prime') {
    if (needsRewardModel(config)) throw notInProcesses('the score of a reward model');
    return {
      reward: createRewardManager(reward_manager.name, fn, options),
      prepare: async (dataSources) => {
        const sources = [...dataSources];
        const code = sources.find((source) => CODE_SOURCES.includes(source));
        if (code !== undefined) throw notInProcesses(`code (data source ${code})`);
        await prepare(sources);
      },
    };
  }
  if (reward_manager.source === 'register') {
    return { reward: closing(createRewardManager(reward_manager.name, fn, options), own ?? usual), prepare };
  }
  const factory = loadExport(
    module.path,
    module.name,
    'reward.reward_manager.module',
  ) as RewardManagerFactory;
  return { reward: closing(madeBy(factory, fn, options, module), own ?? usual), prepare };
}

/** The user's function, in a process of its own. */
interface ModuleReward {
  reward: RewardFunction & BatchRewardFunction;
  prepare: DefaultReward['prepare'];
  close(): void;
}

function moduleReward(config: ResolvedConfig, path: string): ModuleReward {
  const key = 'reward.custom_reward_function';
  const file = resolve(path);
  if (!existsSync(file)) throw new ConfigError(`${key}.path: there is no file ${file}`, `${key}.path`);
  const { timeoutMs = 300_000, kwargs = {}, libraries = [] } = rewardOptions(config, true);
  const { name, python } = config.reward.custom_reward_function;
  const { source, name: manager } = config.reward.reward_manager;
  const batch = source === 'register' && manager === 'batch';
  // verl's gdpo tells its functions.
  const named = source === 'register' && manager === 'gdpo';
  const extraInfo = named ? { experiment_name: config.trainer.experiment_name } : {};
  const process = new RewardProcess(
    { kind: 'function', module: { path, name, python, batch, extraInfo }, libraries, kwargs },
    timeoutMs,
  );
  return {
    reward: ((samples: unknown) => process.call(samples)) as ModuleReward['reward'],
    prepare: async () => {
      try {
        await process.start();
      } catch (error) {
        if (error instanceof ConfigError) throw error;
        throw new TroupeError(
          'REWARD_FAILED',
          `[reward] ${key}.path: ${reasonOf(error)}: ${file} must load, export ${name} and leave its process running`,
          { cause: error },
        );
      }
    },
    close: () => process.close(),
  };
}

/** @throws ConfigError when the function that `module` names makes no manager */
function madeBy(
  factory: RewardManagerFactory,
  fn: RewardFunction | BatchRewardFunction,
  options: RewardManagerOptions,
  { path, name }: ResolvedConfig['reward']['reward_manager']['module'],
): RewardManager {
  const key = 'reward.reward_manager.module';
  const bad = (what: string): ConfigError =>
    new ConfigError(
      `${key}: expected ${name} of ${path} to return a manager, { score(samples) }, but it ${what}`,
      key,
    );
  let manager: RewardManager | null | undefined;
  try {
    manager = factory(fn, options);
  } catch (error) {
    if (error instanceof ConfigError) throw error;
    throw bad(`threw: ${reasonOf(error)}${thrownAt(error, __filename)}`);
  }
  if (typeof manager?.score !== 'function') throw bad(`returned ${show(manager)}`);
  return checkedManager(`${name} of ${path}`, manager);
}

/** A manager that takes the processes of its function with it. */
const closing = (manager: RewardManager, own: Pick<ModuleReward, 'close'> | null): RewardManager =>
  own === null
    ? manager
    : {
        score: (samples) => manager.score(samples),
        close: async () => {
          own.close();
          await manager.close?.();
        },
      };

/** The processes of prime have neither the workers nor the settings of the sandbox. */
function notInProcesses(what: string): ConfigError {
  const key = 'reward.reward_manager.name';
  return new ConfigError(
    `${key}: prime scores in processes of its own, where ${what} cannot be had: use naive or dapo, which bound it as well`,
    key,
  );
}
