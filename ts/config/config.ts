import path from 'node:path';
import { dump } from 'js-yaml';
import { requirePath } from '../base/check_options';
import { loadUserModule } from '../base/user_module';
import { ConfigError } from '../errors';
import { checkConsistency, checkSft } from './checks/checks';
import { muonNotes } from './checks/muon_checks';
import { offloadNotes } from './checks/offload_notes';
import { optimNotes } from './checks/optim_checks';
import { requireConfig, requireOverrides } from './checks/require_config';
import { rolloutNotes } from './checks/rollout_checks';
import { expandPreset } from './derived/correction';
import { adoptMegatronLora } from './derived/megatron_lora';
import { adoptModelEngine } from './derived/model_engine';
import { poolNotes } from './derived/pools';
import { profileNotes } from './derived/profile';
import { type Hidden, hide } from './reading/hidden';
import { type ConfigSource, configTree, readConfig } from './reading/read';
import { type ConfigNote, resolve } from './reading/resolve';
import { isSftTree, type Tree } from './reading/tree';
import type { Section } from './schema/field';
import { ppoSchema, type ResolvedConfig } from './schema/ppo_schema';
import { type ResolvedSftConfig, sftSchema } from './schema/sft_schema';
import { setWritten, writtenConfig } from './written_config';

export { batchArithmetic } from './checks/batch_summary';
export type { ConfigNote } from './reading/resolve';
export type { ResolvedConfig } from './schema/ppo_schema';
export type { ResolvedSftConfig } from './schema/sft_schema';

/** Of each configuration loaded here. Kept beside it: the frozen tree holds keys of the file and nothing else. */
const notesOf = new WeakMap<object, readonly ConfigNote[]>();

/**
 * Reads `file` (YAML, verl's keys), applies dotted `key=value` overrides, validates, fills in defaults and freezes; loads the
 * modules of `actor_rollout_ref.model.external_lib`.
 * @throws ConfigError naming the keys
 */
export function loadConfig(file: string, overrides: readonly string[] = []): ResolvedConfig {
  checkArguments('loadConfig', file, overrides);
  return resolveConfig(readConfig(file), overrides);
}

/** {@link loadConfig} of what has been read. */
export function resolveConfig(source: ConfigSource, overrides: readonly string[]): ResolvedConfig {
  const config = load<ResolvedConfig>(ppoSchema, source, overrides);
  // What they register is a valid name in what is checked next.
  for (const path of config.actor_rollout_ref.model.external_lib ?? [])
    loadUserModule(path, 'actor_rollout_ref.model.external_lib');
  checkConsistency(config);
  return config;
}

/** The same for `troupe sft`. */
export function loadSftConfig(file: string, overrides: readonly string[] = []): ResolvedSftConfig {
  checkArguments('loadSftConfig', file, overrides);
  return resolveSftConfig(readConfig(file), overrides);
}

/** {@link loadSftConfig} of what has been read. */
export function resolveSftConfig(source: ConfigSource, overrides: readonly string[]): ResolvedSftConfig {
  const config = load<ResolvedSftConfig>(sftSchema, source, overrides);
  checkSft(config);
  return config;
}

function checkArguments(where: string, file: unknown, overrides: unknown): void {
  requirePath(where, 'a configuration file', file);
  requireOverrides(where, overrides);
}

/** Keys that were given and are accepted, with the reason why they change nothing here. */
export function configNotes(config: ResolvedConfig | ResolvedSftConfig): readonly ConfigNote[] {
  requireConfig('configNotes', config, null);
  const notes = notesOf.get(config) ?? [];
  const ofRun =
    'actor_rollout_ref' in config
      ? [...poolNotes(config), ...rolloutNotes(config), ...profileNotes(config)]
      : [];
  return [...notes, ...optimNotes(config), ...muonNotes(config), ...offloadNotes(config), ...ofRun];
}

/** The resolved tree as YAML that `loadConfig` reads again; what comes from the environment is taken from there again. */
export function describeConfig(config: ResolvedConfig | ResolvedSftConfig): string {
  requireConfig('describeConfig', config, null);
  return dump(JSON.parse(JSON.stringify(writtenConfig(config))), { lineWidth: 120 });
}

interface RunKeys {
  project_name: string;
  experiment_name: string;
  default_local_dir: string | null;
}

/** Finds the mistakes of a tree that is not in a file. @throws ConfigError as {@link loadConfig} */
export function checkTree(tree: Tree, program: 'train' | 'sft'): void {
  if (program === 'sft') checkSft(fromTree<ResolvedSftConfig>(sftSchema, tree));
  else checkConsistency(fromTree<ResolvedConfig>(ppoSchema, tree));
}

function load<T extends { trainer: object }>(
  schema: Section,
  source: ConfigSource,
  overrides: readonly string[],
): T {
  const hidden: Hidden[] = [];
  const tree = configTree(source, overrides, hidden);
  try {
    return fromTree(schema, tree, hidden);
  } catch (error) {
    const note = error instanceof ConfigError ? ofOtherProgram(schema, tree) : null;
    if (note === null) throw error;
    const { message, path: key } = error as ConfigError;
    throw new ConfigError(`${source.file} ${note}\n${message}`, key);
  }
}

/** Of a tree with mistakes, where it is one of the other program. */
function ofOtherProgram(schema: Section, tree: Tree): string | null {
  if (schema === ppoSchema && isSftTree(tree))
    return 'is for troupe sft: it has a section model, and no actor_rollout_ref. As a configuration of troupe train:';
  if (schema === sftSchema && 'actor_rollout_ref' in tree)
    return 'is for troupe train: it has a section actor_rollout_ref. As a configuration of troupe sft:';
  return null;
}

function fromTree<T extends { trainer: object }>(
  schema: Section,
  given: Tree,
  hidden: readonly Hidden[] = [],
): T {
  const adopted = adoptMegatronLora(adoptModelEngine(expandPreset(given)));
  const { tree, notes, moved, copied } = resolve(schema, adopted.tree);
  const carried = { moved, copied: [...copied, ...adopted.copied] };
  const config = tree as unknown as T;
  const trainer = config.trainer as unknown as RunKeys;
  const written = hide(tree, hidden, carried) as { trainer?: RunKeys };
  trainer.default_local_dir ??= path.join('checkpoints', trainer.project_name, trainer.experiment_name);
  if (written.trainer)
    written.trainer.default_local_dir ??= `checkpoints/${written.trainer.project_name}/${written.trainer.experiment_name}`;
  if (hidden.length > 0) setWritten(config, written);
  notesOf.set(config, Object.freeze([...adopted.notes, ...notes]));
  deepFreeze(config);
  return config;
}

function deepFreeze(value: unknown): void {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return;
  for (const item of Object.values(value)) deepFreeze(item);
  Object.freeze(value);
}
