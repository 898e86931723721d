import { UsageError } from './report';

/** yargs makes NaN of what is no number, before anybody can say what came. @throws UsageError */
export function checkNumbers(argv: readonly string[], given: Readonly<Record<string, unknown>>): void {
  for (const [name, value] of Object.entries(given)) {
    if (!Number.isNaN(value)) continue;
    const option = `--${name}`;
    const at = argv.findIndex((word) => word === option || word.startsWith(`${option}=`));
    if (at < 0) continue;
    const word = argv[at] as string;
    const came = word === option ? argv[at + 1] : word.slice(option.length + 1);
    throw new UsageError(`${option}: expected a number, got ${came ?? 'nothing'}`);
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

/**
 * yargs makes a list of what is given twice, which nothing behind it expects; but to a number that is given before, it adds one where a 1 follows.
 * @param lists options that may be given several times @throws UsageError
 */
export function checkRepeated(
  argv: readonly string[],
  given: Readonly<Record<string, unknown>>,
  lists: readonly string[],
): void {
  const end = argv.indexOf('--');
  const words = end < 0 ? argv : argv.slice(0, end);
  for (const [key, value] of Object.entries(given)) {
    const option = optionOf(key);
    if (key === '_' || key === '--' || lists.includes(option.replace(/^--?/, ''))) continue;
    const times = Array.isArray(value)
      ? value.length
      : typeof value === 'number'
        ? words.filter((word) => word === option || word.startsWith(`${option}=`)).length
        : 1;
    if (times > 1) throw new UsageError(`${option} is given ${times} times: expected it once`);
  }
}
