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
