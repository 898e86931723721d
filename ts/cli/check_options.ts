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

/** yargs makes a list of what is given twice, which nothing behind it expects. @param lists options that may be given several times @throws UsageError */
export function checkRepeated(given: Readonly<Record<string, unknown>>, lists: readonly string[]): void {
  for (const [key, value] of Object.entries(given)) {
    // Under both of its spellings.
    const name = key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    if (!Array.isArray(value) || name === '_' || name === '--' || lists.includes(name)) continue;
    const option = name.length === 1 ? `-${name}` : `--${name}`;
    throw new UsageError(`${option} is given ${value.length} times: expected it once`);
  }
}
