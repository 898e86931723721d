import {
  batchArithmetic,
  configNotes,
  describeConfig,
  loadConfig,
  loadSftConfig,
  type ResolvedConfig,
  type ResolvedSftConfig,
} from '../config/config';
import { readConfigTree } from '../config/read';

/** `troupe validate`. Returns the exit code. */
export async function validate(file: string, overrides: readonly string[]): Promise<number> {
  for (const line of validationReport(file, overrides)) process.stdout.write(`${line}\n`);
  return 0;
}

/** Whether a file is meant for `troupe sft`: it has a top-level model, and no actor_rollout_ref. */
function isSftConfig(tree: Readonly<Record<string, unknown>>): boolean {
  return 'model' in tree && !('actor_rollout_ref' in tree);
}

/**
 * The resolved configuration as YAML that can be used again, with the batch arithmetic, the overrides and the keys without
 * effect as comments.
 * @throws ConfigError
 */
function validationReport(file: string, overrides: readonly string[]): string[] {
  const program = isSftConfig(readConfigTree(file, overrides)) ? 'sft' : 'train';
  const config: ResolvedConfig | ResolvedSftConfig =
    program === 'sft' ? loadSftConfig(file, overrides) : loadConfig(file, overrides);
  const notes = configNotes(config).map(({ path, reason }) => `${path}: ${reason}`);
  return [
    `# ${file} is a valid configuration of troupe ${program}`,
    ...section('batch sizes', batchArithmetic(config)),
    ...section('overridden on the command line', overrides),
    ...section('accepted, without effect here', notes),
    '',
    describeConfig(config).trimEnd(),
  ];
}

function section(title: string, lines: readonly string[]): string[] {
  if (lines.length === 0) return [];
  // A line of an override may hold a line break: it must not leave the comment.
  const text = lines.map((line) => `#   ${line.replaceAll('\n', '\\n')}`);
  return ['#', `# ${title}:`, ...text];
}
