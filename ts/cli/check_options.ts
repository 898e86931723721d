import { UsageError } from './report';

/** yargs makes NaN of what is no number, before anybody can say what came. @throws UsageError */
export function checkNumbers(argv: readonly string[], given: Readonly<Record<string, unknown>>): void {
  for (const [name, value] of Object.entries(given)) {
    if (!Number.isNaN(value)) continue;
    const at = argv.findIndex((word) => isOption(word, name));
    if (at < 0) continue;
    const [, option, came = argv[at + 1]] = /^(--?[^=]*)(?:=(.*))?$/s.exec(argv[at] as string) ?? [];
    throw new UsageError(`${option}: expected a number, got ${came ?? 'nothing'}`);
  }
}

/** yargs makes false of an option that is given as --no-NAME, and 0 of a number. @param switches options without a value @throws UsageError */
export function checkNegated(
  argv: readonly string[],
  given: Readonly<Record<string, unknown>>,
  switches: readonly string[],
): void {
  for (const word of wordsOf(argv)) {
    const [, name = ''] = /^--no-([^=]+)/.exec(word) ?? [];
    const option = optionOf(name);
    if (Object.hasOwn(given, name) && !switches.includes(option.replace(/^--?/, '')))
      throw new UsageError(`${word}: there is no such option: ${option} takes a value`);
  }
}

/** An empty text is what a variable of the shell that is not set leaves: it is no value of an option or a word. @throws UsageError */
export function checkEmpty(argv: readonly string[], given: Readonly<Record<string, unknown>>): void {
  const empty = Object.keys(given).filter((key) => given[key] === '');
  if (empty.length === 0) return;
  const options = empty.map(optionOf);
  // Others are words without a name of their own.
  const typed = options.find((option) =>
    argv.some((word) => word === option || word.startsWith(`${option}=`)),
  );
  throw new UsageError(`${typed ?? `<${empty[0]}>`}: expected a text that is not empty`);
}

/** As it is typed, from either spelling that yargs has for it. */
const optionOf = (key: string): string =>
  key.length === 1 ? `-${key}` : `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;

/** Whether a word gives an option a value, in either spelling of one that has a single letter; -n4 is one, too. */
const isOption = (word: string, name: string): boolean =>
  word === `--${name}` || word.startsWith(`--${name}=`) || (name.length === 1 && word.startsWith(`-${name}`));

/** Those behind a -- are no options. */
function wordsOf(argv: readonly string[]): readonly string[] {
  const end = argv.indexOf('--');
  return end < 0 ? argv : argv.slice(0, end);
}

/**
 * yargs makes a list of what is given twice, which nothing behind it expects; but to a number that is given before, it adds one where a 1 follows.
 * @param lists options that may be given several times @throws UsageError
 */
export function checkRepeated(
  argv: readonly string[],
  given: Readonly<Record<string, unknown>>,
  lists: readonly string[],
): void {
  const words = wordsOf(argv);
  for (const [key, value] of Object.entries(given)) {
    const option = optionOf(key);
    if (key === '_' || key === '--' || lists.includes(option.replace(/^--?/, ''))) continue;
    const times = Array.isArray(value)
      ? value.length
      : typeof value === 'number'
        ? words.filter((word) => isOption(word, option.replace(/^--?/, ''))).length
        : 1;
    if (times > 1) throw new UsageError(`${option} is given ${times} times: expected it once`);
  }
}
