import { existsSync } from 'node:fs';
import { printable } from '../base/printable';
import { show } from '../base/text';
import { reportAll } from '../config/checks/collect';
import { missingFeatures } from '../config/checks/missing';
import {
  batchArithmetic,
  configNotes,
  describeConfig,
  type ResolvedConfig,
  type ResolvedSftConfig,
  resolveConfig,
  resolveSftConfig,
} from '../config/config';
import { type Hidden, hide } from '../config/reading/hidden';
import { parseOverride } from '../config/reading/overrides';
import { type ConfigSource, configTree, parseYamlTree, readConfig } from '../config/reading/read';
import { getPath, isSftTree, leafPaths, type Tree } from '../config/reading/tree';
import { ConfigError } from '../errors';
import { absentModels, checkModels, checkSftModel } from '../roles/check_models';
import { decideImages } from '../roles/images_of_data';
import { runRoles } from '../roles/model_roles';
import { checkRouterKeys } from '../roles/router_keys';
import { checkDataRows } from '../trainer/check_data';
import { checkClassFile } from '../trainer/class_rows';

const NO_OTHER_ROLES = { reference: false, critic: false, rewardModel: false };

/** `troupe validate`. Returns the exit code. */
export async function validate(file: string, overrides: readonly string[]): Promise<number> {
  for (const line of await validationReport(file, overrides)) process.stdout.write(`${line}\n`);
  return 0;
}

/**
 * What the configuration asks for and Troupe lacks, together with the mistakes that loading it finds.
 * @throws ConfigError
 */
function checkFeatures(tree: Tree, load: () => void): void {
  reportAll([
    load,
    ...missingFeatures(tree).map(({ path, message }) => () => {
      throw new ConfigError(`${path}: ${message}`, path);
    }),
  ]);
}

/**
 * Where the models of the run are at hand, that they can be used as the configuration says, as `train` and `sft` find it before they start a worker.
 * Returns what of them is not there.
 * @throws ConfigError, TroupeError naming the key
 */
async function checkedModels(config: ResolvedConfig | ResolvedSftConfig): Promise<string[]> {
  const roles = 'actor_rollout_ref' in config ? runRoles(config) : NO_OTHER_ROLES;
  const absent = absentModels(config, roles);
  const decided = await decideImages(config);
  checkRouterKeys(decided);
  if ('actor_rollout_ref' in decided) checkModels(decided, roles, absent);
  else if (absent.length === 0) checkSftModel(decided);
  return absent;
}

/** The modules and files of the user that a run loads and that are not there. */
function absentModules({ reward, actor_rollout_ref: { rollout } }: ResolvedConfig): string[] {
  const { agent, multi_turn: turns } = rollout;
  const named = [
    reward.custom_reward_function.path,
    reward.reward_manager.module.path,
    agent.path,
    ...(agent.tools ?? []),
    turns.tool_config_path,
    turns.function_tool_path,
  ];
  return named.filter((file) => file !== null).filter((file) => !existsSync(file));
}

/**
 * The resolved configuration as YAML that can be used again, with the batch arithmetic, the overrides and the keys without
 * effect as comments.
 * @throws ConfigError, TroupeError naming the key
 */
export async function validationReport(file: string, overrides: readonly string[]): Promise<string[]> {
  const source = readConfig(file);
  const hidden: Hidden[] = [];
  const tree = configTree(source, overrides, hidden);
  const program = isSftTree(tree) ? 'sft' : 'train';
  const load = (): ResolvedConfig | ResolvedSftConfig =>
    program === 'sft' ? resolveSftConfig(source, overrides) : resolveConfig(source, overrides);
  checkFeatures(tree, load);
  const config = load();
  if ('actor_rollout_ref' in config) checkClassFile(config);
  const shown = hide(tree, hidden, { moved: [], copied: [] });
  const absent = await checkedModels(config);
  const modules = 'actor_rollout_ref' in config ? absentModules(config) : [];
  const absentFiles = [...(await checkDataRows(config)), ...modules];
  const notes = configNotes(config).map(({ path, reason }) => `${path}: ${reason}`);
  return [
    `# ${printable(file, { max: 4096 })} is a valid configuration of troupe ${program}`,
    ...section('batch sizes', batchArithmetic(config)),
    ...section('given in the file', fileKeys(source, overrides)),
    ...section('overridden on the command line', overridden(source, overrides, shown)),
    ...section('accepted, without effect here', notes),
    ...section('not looked at, as these directories have no config.json', absent),
    ...section('not looked at, as there are no such files', absentFiles),
    '',
    describeConfig(config).trimEnd(),
  ];
}

/** As it stands: its references may only be resolved by an override. */
const fileTree = ({ file, text }: ConfigSource): Tree => parseYamlTree(text, file);

const keyOf = (override: string): string => parseOverride(override).key;

/** Keys whose value comes from the file; all that is neither here nor overridden has its default. */
function fileKeys(source: ConfigSource, overrides: readonly string[]): string[] {
  const keys = overrides.map(keyOf);
  const isOverridden = (path: string): boolean =>
    keys.some((key) => path === key || path.startsWith(`${key}.`));
  return wrapped(leafPaths(fileTree(source)).filter((path) => !isOverridden(path)));
}

/** "key: now (what the file says)" for each override; `tree`: with references to the environment instead of its values. */
function overridden(source: ConfigSource, overrides: readonly string[], tree: Tree): string[] {
  const before = fileTree(source);
  const said = (value: unknown): string => (value === undefined ? 'default' : show(value));
  return [...new Set(overrides.map(keyOf))].map(
    (key) => `${key}: ${said(getPath(tree, key))} (the file: ${said(getPath(before, key))})`,
  );
}

/** Names on lines of about 110 characters. */
function wrapped(names: readonly string[]): string[] {
  const lines: string[] = [];
  for (const name of names) {
    const last = lines.at(-1);
    if (last === undefined || last.length + name.length > 108) lines.push(name);
    else lines[lines.length - 1] = `${last}, ${name}`;
  }
  return lines;
}

function section(title: string, lines: readonly string[]): string[] {
  if (lines.length === 0) return [];
  // An override may hold a line break: it must not leave the comment.
  const text = lines.map((line) => `#   ${printable(line, { max: 4096 })}`);
  return ['#', `# ${title}:`, ...text];
}
