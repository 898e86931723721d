// What yargs says of a command line that it cannot read, in the words of whoever typed it.

/** Commands that take keys of a configuration. */
const WITH_KEYS = ['train', 'sft', 'validate', 'plan', 'agent', 'submit', 'doctor', 'import-verl', 'eval'];

/** How Hydra's programs name their configuration. */
const FILE_OPTIONS = ['config-path', 'config-name', 'config-dir'];

/** A message about a command, options or words that are none: each as it was typed, and how a key of a configuration is given. */
export function asTyped(message: string, [command, ...words]: readonly string[]): string {
  const [, nearest] = /^Did you mean (.*)\?$/.exec(message) ?? [];
  if (nearest !== undefined) return `There is no command ${command}: did you mean ${nearest}?`;
  // yargs takes what is left over of a command for one more command.
  const [, left] = /^Unknown commands?: (.*)$/.exec(message) ?? [];
  if (left !== undefined && words.includes(left.split(', ')[0] as string))
    return `Expected no further words after those of ${command}, got ${left}`;
  const [, list] = /^Unknown arguments?: (.*)$/.exec(message) ?? [];
  if (list === undefined) return message;
  // yargs names what has hyphens in its other spelling, too.
  const camel = (name: string): string => name.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase());
  const names = list.split(', ');
  const typed = names.filter((name) => !names.some((other) => other !== name && camel(other) === name));
  const hint = typed.some((name) => FILE_OPTIONS.includes(name))
    ? '; a configuration is named by its path, as in troupe train conf/run.yaml'
    : WITH_KEYS.includes(command ?? '')
      ? '; keys of the configuration have no --, as in trainer.seed=2'
      : '';
  return `Unknown argument${typed.length === 1 ? '' : 's'}: ${typed.join(', ')}${hint}`;
}
