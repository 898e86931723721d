import { existsSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { ConfigError } from '../errors';
import { loadFailure } from './load_failure';

const STACK = 100;

/**
 * The exports of a user's module (.js, .cjs, .mjs, and .ts where Node runs TypeScript), relative paths from the working
 * directory. `key` is the key of the configuration that names it; `inPython`: where a file in Python belongs instead.
 * @throws ConfigError naming `key`, the file, the line and what to do
 */
export function loadUserModule(path: string, key: string, inPython?: string): Record<string, unknown> {
  const file = resolve(path);
  if (!existsSync(file)) throw new ConfigError(`${key}: there is no file ${file}`, key);
  if (file.endsWith('.py')) {
    const instead = inPython === undefined ? '' : `; ${inPython}`;
    throw new ConfigError(`${key}: expected a JavaScript or TypeScript module, got ${file}${instead}`, key);
  }
  if (statSync(file).isDirectory())
    throw new ConfigError(`${key}: expected a file, got the directory ${file}`, key);
  const { stackTraceLimit } = Error;
  // The calls of Node's loader alone are more than the 10 that a stack has.
  Error.stackTraceLimit = STACK;
  try {
    const exported: unknown = require(file);
    const has = (typeof exported === 'object' && exported !== null) || typeof exported === 'function';
    // Who looks for an export in `module.exports = null` is told that there is none.
    return has ? (exported as Record<string, unknown>) : {};
  } catch (error) {
    throw new ConfigError(`${key}: could not load ${file}: ${loadFailure(file, error, __filename)}`, key);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}
