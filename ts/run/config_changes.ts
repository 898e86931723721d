// How the configuration of a run differs from the one that a checkpoint was made with.
import { createHash } from 'node:crypto';
import { show } from '../base/text';
import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import { needsCritic, needsRewardModel } from '../config/derived/roles';
import { teachersOf } from '../config/derived/teachers';
import { getPath, leafPaths, type Tree } from '../config/reading/tree';
import { leafAt } from '../config/schema/field';
import { ppoSchema } from '../config/schema/ppo_schema';
import { sftSchema } from '../config/schema/sft_schema';

export type RunConfig = ResolvedConfig | ResolvedSftConfig;

/** They say how to go on, or where, not with what. */
const HOW_TO_RESUME = [
  'trainer.resume_mode',
  'trainer.resume_from_path',
  'trainer.resume_with_changes',
  'trainer.default_local_dir',
];

/** Of a `model` section: what the numbers of a run are about. */
const MODEL_KEYS = [
  'path',
  'tokenizer_path',
  'custom_chat_template',
  'lora_rank',
  'lora_alpha',
  'target_modules',
  'exclude_modules',
];
const model = (section: string): string[] => MODEL_KEYS.map((key) => `${section}.${key}`);

/** The keys that make a run this one: with another value of one of them it would learn something else, or from something else. */
function identityKeys(config: RunConfig): string[] {
  if (!('actor_rollout_ref' in config))
    return [
      ...model('model'),
      'data.train_files',
      'data.messages_key',
      'data.prompt_key',
      'data.response_key',
      // Runs that were begun before there were such keys stay what they are.
      ...(config.data.apply_chat_template ? ['data.apply_chat_template'] : []),
      ...(config.data.prompt_dict_keys === null ? [] : ['data.prompt_dict_keys']),
      ...(config.data.response_dict_keys === null ? [] : ['data.response_dict_keys']),
    ];
  return [
    ...model('actor_rollout_ref.model'),
    ...(needsCritic(config) ? model('critic.model') : []),
    'data.train_files',
    'data.prompt_key',
    ...(config.data.custom_cls.path === null
      ? []
      : ['data.custom_cls.path', 'data.custom_cls.name', 'data.custom_cls.config']),
    'algorithm.adv_estimator',
    'actor_rollout_ref.actor.policy_loss.loss_mode',
    'reward.reward_model.enable',
    ...(teachersOf(config).length > 0
      ? ['distillation.enabled', 'distillation.distillation_loss.loss_mode']
      : []),
    ...teachersOf(config).flatMap(({ section }) => [`${section}.model_path`, `${section}.key`]),
    ...(needsRewardModel(config) ? ['reward.reward_model.model_path'] : []),
  ];
}

/** Digest of the values of the keys that make a run this one, also where the configuration that is written down hides them. */
export function runIdentity(config: RunConfig): string {
  const values = identityKeys(config).map((key) => [key, getPath(config, key) ?? null]);
  return createHash('sha256').update(JSON.stringify(values)).digest('hex');
}

/** A key with two values. */
export interface ConfigChange {
  path: string;
  /** undefined: not there. */
  before: unknown;
  now: unknown;
  /** It makes another run of it. */
  essential: boolean;
}

const same = (a: unknown, b: unknown): boolean => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

/** Whether a key has the value that it has where nothing is said. */
function isDefault(path: string, now: Tree): boolean {
  const leaf = leafAt('actor_rollout_ref' in now ? ppoSchema : sftSchema, path);
  if (leaf?.kind !== 'field') return false;
  return same(getPath(now, path), leaf.from === null ? leaf.value : getPath(now, leaf.from));
}

/**
 * `before`, `now`: configurations as they are written down; `config`: the one of `now`. In the order of their keys. A key that is not
 * there, as in what an older version wrote, is null, and no difference where it has its default now, unless it makes another run.
 */
export function configChanges(before: Tree, now: Tree, config: RunConfig): ConfigChange[] {
  const essential = identityKeys(config);
  const paths = new Set([...leafPaths(now), ...leafPaths(before)]);
  return [...paths]
    .filter((path) => !HOW_TO_RESUME.includes(path))
    .map((path) => ({
      path,
      before: getPath(before, path),
      now: getPath(now, path),
      essential: essential.some((key) => path === key || path.startsWith(`${key}.`)),
    }))
    .filter(({ before: a, now: b }) => !same(a, b))
    .filter(({ path, before, essential }) => before !== undefined || essential || !isDefault(path, now));
}

export const describeChange = ({ path, before, now }: ConfigChange): string =>
  `${path}: ${before === undefined ? 'not there' : show(before)} -> ${now === undefined ? 'not there' : show(now)}`;
