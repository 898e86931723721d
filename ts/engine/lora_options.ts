import { badOption, checkOptionNames, countOption, numberOption } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';

/**
 * Low-rank adaptation: adapters are trained, the model's own weights are frozen; docs/lora.md. Names and meanings are those of
 * PEFT's LoraConfig.
 */
export interface LoraOptions {
  /** Needed unless `adapter` is given, which then says. */
  rank?: number;
  /** Adapters are scaled by alpha / rank. Default 16, or the adapter's. */
  alpha?: number;
  /** 'all-linear' (default), or names of modules or their ends: ['q_proj', 'v_proj']. */
  targetModules?: 'all-linear' | readonly string[];
  /** Names of modules, or their ends, that get no adapter. */
  excludeModules?: readonly string[];
  /** Directory with adapter_config.json and adapter_model.safetensors to start from. It says which modules have adapters. */
  adapter?: string;
}

export interface ResolvedLoraOptions {
  /** null: the adapter says. */
  rank: number | null;
  alpha: number | null;
  targetModules: 'all-linear' | readonly string[];
  excludeModules: readonly string[];
  adapter: string | null;
}

const KEYS = ['rank', 'alpha', 'targetModules', 'excludeModules', 'adapter'];

export function resolveLoraOptions(where: string, o: LoraOptions): ResolvedLoraOptions {
  checkOptionNames(where, o, KEYS);
  const { rank, alpha, targetModules = 'all-linear', excludeModules = [], adapter } = o;
  if (adapter !== undefined && (typeof adapter !== 'string' || adapter === ''))
    throw badOption(where, `adapter: expected a directory but got ${show(adapter)}`);
  if (rank === undefined && adapter === undefined) throw badOption(where, 'rank: expected an integer >= 1');
  if (adapter !== undefined && (o.targetModules !== undefined || o.excludeModules !== undefined)) {
    throw badOption(
      where,
      'targetModules and excludeModules: the adapter says which modules it is on; leave them out',
    );
  }
  return {
    rank: rank === undefined ? null : countOption(where, 'rank', rank, RUN_LIMITS.loraRank),
    alpha: alpha === undefined ? null : numberOption(where, 'alpha', alpha, 0, { above: 0 }),
    targetModules:
      targetModules === 'all-linear' ? targetModules : names(where, 'targetModules', targetModules),
    excludeModules: names(where, 'excludeModules', excludeModules),
    adapter: adapter ?? null,
  };
}

function names(where: string, option: string, value: unknown): readonly string[] {
  if (Array.isArray(value) && value.every((name) => typeof name === 'string' && name !== '')) return value;
  const all = option === 'targetModules' ? "'all-linear' or " : '';
  throw badOption(
    where,
    `${option}: expected ${all}a list of module names such as ['q_proj', 'v_proj'] but got ${JSON.stringify(value)}`,
  );
}
