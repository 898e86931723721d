import { show } from '../base/text';
import { reportAll } from '../config/checks/collect';
import { missingFeatures } from '../config/checks/missing';
import {
  batchArithmetic,
  configNotes,
  describeConfig,
  loadConfig,
  loadSftConfig,
  type ResolvedConfig,
  type ResolvedSftConfig,
} from '../config/config';
import { parseOverride } from '../config/reading/overrides';
import { parseYamlTree, readConfigText, readConfigTree } from '../config/reading/read';
import { getPath, leafPaths, type Tree } from '../config/reading/tree';
import { isSftTree } from '../config/verl/source';
import { ConfigError } from '../errors';

/** `troupe validate`. Returns the exit code. */
export async function validate(file: string, overrides: readonly string[]): Promise<number> {
  for (const line of validationReport(file, overrides)) process.stdout.write(`${line}\n`);
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
 * The resolved configuration as YAML that can be used again, with the batch arithmetic, the overrides and the keys without
 * effect as comments.
 * @throws ConfigError
 */
function validationReport(file: string, overrides: readonly string[]): string[] {
  const tree = readConfigTree(file, overrides);
  const program = isSftTree(tree) ? 'sft' : 'train';
  const load = (): ResolvedConfig | ResolvedSftConfig =>
    program === 'sft' ? loadSftConfig(file, overrides) : loadConfig(file, overrides);
  checkFeatures(tree, load);
  const config = load();
  const notes = configNotes(config).map(({ path, reason }) => `${path}: ${reason}`);
  return [
    `# ${file} is a valid configuration of troupe ${program}`,
    ...section('batch sizes', batchArithmetic(config)),
    ...section('given in the file', fileKeys(file, overrides)),
    ...section('overridden on the command line', overridden(file, overrides, tree)),
    ...section('accepted, without effect here', notes),
    '',
    describeConfig(config).trimEnd(),
  ];
}

/** As it stands: its references may only be resolved by an override. */
const fileTree = (file: string): Tree => parseYamlTree(readConfigText(file), file);

const keyOf = (override: string): string => parseOverride(override).key;

/** Keys whose value comes from the file; all that is neither here nor overridden has its default. */
function fileKeys(file: string, overrides: readonly string[]): string[] {
  const keys = overrides.map(keyOf);
  const isOverridden = (path: string): boolean =>
    keys.some((key) => path === key || path.startsWith(`${key}.`));
  return wrapped(leafPaths(fileTree(file)).filter((path) => !isOverridden(path)));
}

/** "key: now (what the file says)" for each override. */
function overridden(file: string, overrides: readonly string[], tree: Tree): string[] {
  const before = fileTree(file);
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
  // A line of an override may hold a line break: it must not leave the comment.
  const text = lines.map((line) => `#   ${line.replaceAll('\n', '\\n')}`);
  return ['#', `# ${title}:`, ...text];
}
