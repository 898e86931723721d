import { existsSync, utimesSync } from 'node:fs';
import path from 'node:path';
import { TroupeError } from '../errors';
import { type Addon, addonFor, listAddons } from './addons';
import { type BuildResult, buildAddon } from './build';
import { askedByEnvironment, type CudaChoice, chooseCuda } from './cuda_choice';
import { discoverLibTorch } from './discovery';
import { fetchLibTorch } from './fetch';
import { type LibTorch, pinnedVersion } from './libtorch';
import { packageRoot, writableLibtorchCache } from './package_root';
import { checkPrerequisites } from './prerequisites';

const BUILD_TOOLS = ['cmake', 'compiler', 'make'];

export interface SetupOptions {
  /** Fetch this version of torch even when another LibTorch is there; null: the pinned one, only when there is none. */
  version?: string | null;
  /** Fetch again although a copy is there. */
  force?: boolean;
  /** Compile the addon from source although one fits. */
  rebuild?: boolean;
  /** Build with CUDA, or without; null: TROUPE_CUDA, else with it where LibTorch and nvcc have it. */
  cuda?: boolean | null;
  log?: (line: string) => void;
}

/**
 * `troupe setup`: makes sure there is a LibTorch and an addon for it. Idempotent.
 * Returns the exit code; throws TroupeError with what to do when a step fails.
 */
export async function runSetup(options: SetupOptions = {}): Promise<number> {
  const log = options.log ?? ((line: string) => console.log(line));
  const libtorch = await ensureLibTorch(options, log);
  log(`LibTorch ${libtorch.version} (${libtorch.variant}) at ${libtorch.dir}`);
  const choice = chooseCuda(libtorch, options.cuda ?? askedByEnvironment());
  const found = options.rebuild ? null : addonFor(listAddons(), libtorch);
  const addon = found !== null && !isToBeReplaced(found, choice, options, log) ? found : null;
  if (addon !== null) log(`Native addon: ${addon.file}`);
  else buildFromSource(libtorch, choice, log);
  return 0;
}

/** An addon without CUDA where there could be one with it; or the other way round, where that is asked for. */
function isToBeReplaced(
  { file, variant }: Addon,
  { nvcc, reason }: CudaChoice,
  options: SetupOptions,
  log: (line: string) => void,
): boolean {
  if (nvcc === null) return variant !== 'cpu' && (options.cuda ?? askedByEnvironment()) === false;
  if (variant !== 'cpu') return false;
  const missing = checkPrerequisites(BUILD_TOOLS).find((tool) => !tool.ok);
  if (missing === undefined) return true;
  log(
    `${file} is built without CUDA. There could be one with it, because ${reason}, but: ${missing.found} ${missing.fix}`,
  );
  return false;
}

/** The LibTorch to use, fetched when there is none (or when `options` ask for it). */
export async function ensureLibTorch(options: SetupOptions, log: (line: string) => void): Promise<LibTorch> {
  const { found, notes } = discoverLibTorch();
  const asked = options.version ?? null;
  const fits = found.find((libtorch) => asked === null || libtorch.version === asked);
  if (fits && !options.force) {
    if (asked !== null && fits.source === 'cache') makeFirst(fits);
    return fits;
  }
  if (process.env['TROUPE_LIBTORCH'] && (asked !== null || options.force)) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `TROUPE_LIBTORCH is set (${process.env['TROUPE_LIBTORCH']}) and comes before any copy fetched here: unset it first.`,
    );
  }
  requireTools(['python']);
  for (const note of notes) log(note);
  return await fetchLibTorch({
    version: asked ?? pinnedVersion,
    cache: writableLibtorchCache(),
    python: process.env['TROUPE_PYTHON'] || 'python3',
    pipArgs: (process.env['TROUPE_PIP_ARGS'] ?? '').split(/\s+/).filter((arg) => arg !== ''),
    cuda: existsSync('/proc/driver/nvidia/version'),
    log,
  });
}

/** Discovery takes the copy with the newest date. */
function makeFirst(libtorch: LibTorch): void {
  const now = new Date();
  utimesSync(path.dirname(libtorch.dir), now, now);
}

function buildFromSource(libtorch: LibTorch, choice: CudaChoice, log: (line: string) => void): void {
  if (!existsSync(path.join(packageRoot, 'CMakeLists.txt'))) {
    throw new TroupeError(
      'NATIVE_UNAVAILABLE',
      `${packageRoot} has neither an addon nor the sources of one: reinstall the package.`,
    );
  }
  requireTools(BUILD_TOOLS);
  const { addon } = buildForMachine({ libtorch, tests: false, force: true, choice, log });
  log(`Native addon: ${addon}`);
}

/** Builds the addon for this machine, says whether with CUDA, and why. @throws TroupeError as buildAddon */
export function buildForMachine({
  libtorch,
  tests,
  force = false,
  choice = chooseCuda(libtorch, askedByEnvironment()),
  log,
}: {
  libtorch: LibTorch;
  tests: boolean;
  force?: boolean;
  choice?: CudaChoice;
  log: (line: string) => void;
}): BuildResult {
  const { nvcc, reason } = choice;
  log(`The native addon is one ${nvcc === null ? 'without' : 'with'} CUDA: ${reason}`);
  try {
    const compiler = { cuda: nvcc !== null, nvcc: nvcc?.file ?? null };
    return buildAddon({ libtorch, tests, force, rpath: true, ...compiler, log });
  } catch (error) {
    if (nvcc !== null && error instanceof TroupeError)
      error.message += ' It was a build with CUDA: TROUPE_CUDA=0 in the environment leaves CUDA out.';
    throw error;
  }
}

function requireTools(names: string[]): void {
  const missing = checkPrerequisites(names).filter((tool) => !tool.ok);
  if (missing.length === 0) return;
  throw new TroupeError('NATIVE_UNAVAILABLE', missing.map((tool) => `${tool.found} ${tool.fix}`).join('\n'));
}
