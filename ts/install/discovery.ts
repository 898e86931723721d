import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import { TroupeError } from '../errors';
import { inspectLibTorch, type LibTorch, supportedRange } from './libtorch';
import { libtorchCaches } from './package_root';

export interface Discovery {
  /** Usable LibTorch installations, best first. */
  found: LibTorch[];
  /** Why the other places that were looked at do not count, one sentence each. */
  notes: string[];
}

/**
 * Every usable LibTorch in the order of preference: TROUPE_LIBTORCH; a copy fetched by `troupe setup`; the
 * `torch` package of the Python on PATH. When TROUPE_LIBTORCH is set nothing else counts, and a wrong one throws.
 * Python is asked only when nothing came before it, because starting it takes a while.
 */
export function discoverLibTorch(env: NodeJS.ProcessEnv = process.env): Discovery {
  const named = env['TROUPE_LIBTORCH'];
  if (named) return { found: [inspectLibTorch(named, 'TROUPE_LIBTORCH', 'TROUPE_LIBTORCH')], notes: [] };

  const discovery: Discovery = { found: [], notes: [] };
  for (const dir of fetchedCopies(env))
    consider(discovery, dir, 'cache', 'The copy fetched by `troupe setup`');
  if (discovery.found.length > 0) return discovery;

  const python = env['TROUPE_PYTHON'] || 'python3';
  const dir = pythonTorchDirectory(python, env);
  if (dir === null) discovery.notes.push(`${python} has no importable torch.`);
  else consider(discovery, dir, 'python', `The torch of ${python}`);
  return discovery;
}

/** The LibTorch to use. Throws NATIVE_UNAVAILABLE with everything that was tried when there is none. */
export function findLibTorch(env: NodeJS.ProcessEnv = process.env): LibTorch {
  const { found, notes } = discoverLibTorch(env);
  if (found[0]) return found[0];
  throw new TroupeError(
    'NATIVE_UNAVAILABLE',
    `No usable LibTorch (${supportedRange}) was found. ${notes.join(' ')} ` +
      'Run `npx troupe setup` to fetch one, or set TROUPE_LIBTORCH to a LibTorch or a Python torch directory.',
  );
}

function consider(discovery: Discovery, dir: string, source: LibTorch['source'], origin: string): void {
  try {
    discovery.found.push(inspectLibTorch(dir, source, origin));
  } catch (error) {
    discovery.notes.push((error as Error).message);
  }
}

/** Directories like <cache>/2.13.0-cpu, the one asked for last first; unfinished ones start with a dot. */
function fetchedCopies(env: NodeJS.ProcessEnv): string[] {
  return libtorchCaches(env).flatMap((cache) => {
    if (!existsSync(cache)) return [];
    const names = readdirSync(cache).filter((name) => /^\d+\.\d+/.test(name));
    const copies = names.map((name) => path.join(cache, name));
    return copies.sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);
  });
}

/** Where `import torch` would come from; found without importing it, which would take seconds. */
function pythonTorchDirectory(python: string, env: NodeJS.ProcessEnv): string | null {
  const program =
    "import importlib.util as u; s = u.find_spec('torch'); " +
    "print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')";
  // Not from the current directory: a folder named torch there would be taken for the package.
  const run = spawnSync(python, ['-c', program], {
    encoding: 'utf8',
    env,
    cwd: path.parse(process.cwd()).root,
  });
  const dir = run.status === 0 ? run.stdout.trim() : '';
  return dir === '' ? null : dir;
}
