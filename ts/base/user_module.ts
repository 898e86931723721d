import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { ConfigError } from '../errors';
import { reasonOf } from './text';

/**
 * The exports of a user's module (.js, .cjs, .mjs, and .ts where Node runs TypeScript), relative paths from the working
 * directory. `key` is the key of the configuration that names it; `inPython`: where a file in Python belongs instead.
 * @throws ConfigError naming `key` and the file
 */
export function loadUserModule(path: string, key: string, inPython?: string): Record<string, unknown> {
  const file = resolve(path);
  if (!existsSync(file)) throw new ConfigError(`${key}: there is no file ${file}`, key);
  if (file.endsWith('.py')) {
    const instead = inPython === undefined ? '' : `; ${inPython}`;
    throw new ConfigError(`${key}: expected a JavaScript or TypeScript module, got ${file}${instead}`, key);
  }
  try {
    return require(file) as Record<string, unknown>;
  } catch (error) {
    const typescript =
      /\.[cm]?ts$/.test(file) && !('typescript' in process.features && process.features.typescript);
    const hint = typescript
      ? ` (this Node, ${process.version}, cannot load TypeScript: use Node >= 22.18 or compile the file to JavaScript)`
      : '';
    throw new ConfigError(`${key}: could not load ${file}: ${reasonOf(error)}${hint}`, key);
  }
}
