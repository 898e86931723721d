import { accessSync, constants, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import path from 'node:path';

/** The directory of our package.json: both ts/native and dist/native lie two levels below it. */
export const packageRoot = path.resolve(__dirname, '..', '..');

/** The version in our package.json. */
export function packageVersion(): string {
  const manifest = JSON.parse(readFileSync(path.join(packageRoot, 'package.json'), 'utf8')) as {
    version: string;
  };
  return manifest.version;
}

/** Where a fetched LibTorch may lie, in the order of preference: beside the package, then the user's cache. */
export function libtorchCaches(env: NodeJS.ProcessEnv = process.env): string[] {
  const userCache = env['XDG_CACHE_HOME'] || path.join(homedir(), '.cache');
  return [path.join(packageRoot, '.troupe', 'libtorch'), path.join(userCache, 'troupe', 'libtorch')];
}

/** The first of `libtorchCaches` that this user may write to. */
export function writableLibtorchCache(env: NodeJS.ProcessEnv = process.env): string {
  const [beside, user] = libtorchCaches(env) as [string, string];
  try {
    accessSync(packageRoot, constants.W_OK);
    return beside;
  } catch {
    return user;
  }
}
