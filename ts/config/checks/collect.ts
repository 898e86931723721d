import { ConfigError } from '../../errors';

/**
 * Makes every check, and reports all that found something in one error, a line each.
 * @throws ConfigError
 */
export function reportAll(checks: readonly (() => void)[]): void {
  const found: ConfigError[] = [];
  for (const check of checks) {
    try {
      check();
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      found.push(error);
    }
  }
  const [first] = found;
  if (first === undefined) return;
  if (found.length === 1) throw first;
  const lines = new Set(found.flatMap(({ message }) => message.split('\n')));
  throw new ConfigError([...lines].join('\n'), first.path);
}
