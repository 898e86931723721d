import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, statSync } from 'node:fs';
import { hostname } from 'node:os';
import path from 'node:path';
import { makeDirectories } from '../base/make_directories';
import { ignoresHangups } from '../base/nohup';
import { TroupeError } from '../errors';
import { inspectLibTorch, type LibTorch, supportedMinors, supportedRange } from './libtorch';
import { unpackProgram } from './unpack_program';

export interface FetchOptions {
  /** '2.13.0' */
  version: string;
  /** Directory that receives `<version>-<variant>/torch`. */
  cache: string;
  python: string;
  /** Further arguments for pip (an index, a directory of wheels), from TROUPE_PIP_ARGS. */
  pipArgs: string[];
  /** Also fetch the CUDA libraries that a CUDA build computes with, several GB; without, only those it loads with. */
  cuda: boolean;
  log: (line: string) => void;
}

const partialPrefix = '.partial-';

/**
 * Downloads the torch wheel with pip and keeps its headers and libraries. Everything happens in a directory of
 * its own that is renamed at the end: an interrupted fetch leaves nothing that discovery would find.
 *
 * Throws TroupeError IO when pip finds no wheel or the disk is full; NATIVE_UNAVAILABLE when the wheel is unusable.
 */
export async function fetchLibTorch(options: FetchOptions): Promise<LibTorch> {
  checkVersion(options.version);
  makeDirectories(options.cache);
  removeAbandoned(options.cache);
  const work = mkdtempSync(path.join(options.cache, `${partialPrefix}${hostname()}-${process.pid}-`));
  const cleanUp = (): void => rmSync(work, { recursive: true, force: true });
  const endings: NodeJS.Signals[] = ['SIGINT', 'SIGTERM', ...(ignoresHangups() ? [] : (['SIGHUP'] as const))];
  const interrupt = (signal: NodeJS.Signals): void => {
    runningChild?.kill();
    cleanUp();
    for (const ending of endings) process.off(ending, interrupt);
    process.kill(process.pid, signal);
  };
  for (const ending of endings) process.on(ending, interrupt);
  try {
    return await fetchInto(work, options);
  } finally {
    for (const ending of endings) process.off(ending, interrupt);
    cleanUp();
  }
}

async function fetchInto(work: string, options: FetchOptions): Promise<LibTorch> {
  const { log } = options;
  log(`Downloading torch ${options.version} with pip (about 200 MB for a CPU build) ...`);
  const wheels = path.join(work, 'wheels');
  await pipDownload(options, wheels, ['--no-deps', `torch==${options.version}`]);
  const tree = path.join(work, 'tree');
  log('Unpacking headers and libraries ...');
  await unpack(options, wheelsIn(wheels), tree);

  const torch = inspectLibTorch(tree, 'cache', 'The downloaded wheel');
  if (torch.variant !== 'cpu') await fetchCudaLibraries(work, tree, options);
  const missing = missingLibraries(torch);
  if (missing.length > 0) {
    throw new TroupeError(
      'NATIVE_UNAVAILABLE',
      `The wheel that pip chose (torch ${torch.version}, ${torch.variant}) needs ${missing.join(', ')}, ` +
        'which this system lacks. Install the packages that provide them, or point pip at another build of torch with TROUPE_PIP_ARGS (docs/install.md).',
    );
  }
  const target = path.join(options.cache, `${torch.version}-${torch.variant}`);
  rmSync(target, { recursive: true, force: true });
  renameSync(tree, target);
  return inspectLibTorch(target, 'cache', 'The fetched copy');
}

/** A CUDA build of libtorch_cpu.so loads libcudart and libcupti from `../nvidia` even where nothing runs on a GPU. */
async function fetchCudaLibraries(work: string, tree: string, options: FetchOptions): Promise<void> {
  const metadata = readdirSync(tree).find((name) => /^torch-.*\.dist-info$/.test(name));
  const text = metadata ? readFileSync(path.join(tree, metadata, 'METADATA'), 'utf8') : '';
  const requirements = cudaRequirements(text, options.cuda);
  if (requirements.length === 0) return;
  options.log('This torch is a CUDA build: downloading the CUDA libraries that it loads with ...');
  const wheels = path.join(work, 'cuda-wheels');
  await pipDownload(options, wheels, requirements);
  await unpack(options, wheelsIn(wheels), tree);
}

/** The CUDA packages among a wheel's requirements: all of them, or just what libtorch_cpu.so is linked with. */
export function cudaRequirements(metadata: string, all: boolean): string[] {
  const requirements = [...metadata.matchAll(/^Requires-Dist: ((?:cuda-toolkit|nvidia-)[^;\n]*)/gm)].map(
    (match) => (match[1] as string).trim(),
  );
  if (all) return requirements;
  const needed = requirements.filter((name) => /^nvidia-cuda-(runtime|cupti)/.test(name));
  const toolkit = requirements.find((name) => name.startsWith('cuda-toolkit['));
  return toolkit ? [...needed, toolkit.replace(/\[.*\]/, '[cudart,cupti]')] : needed;
}

async function pipDownload(options: FetchOptions, dest: string, args: string[]): Promise<void> {
  const pip = ['-m', 'pip', 'download', '--disable-pip-version-check', '--only-binary=:all:', '--dest', dest];
  // An index that cannot be reached should cost seconds, not minutes, when another one has the wheel.
  const patience = ['--retries', '1', '--timeout', '15'];
  const status = await runInherited(options.python, [
    ...pip,
    ...patience,
    ...foreignPython(options.python),
    ...options.pipArgs,
    ...args,
  ]);
  if (status === 0) return;
  throw new TroupeError(
    'IO',
    `pip could not download ${args[args.length - 1]} (its messages are above). Check the network and the free disk space, ` +
      'and run `npx troupe setup` again. If your wheels come from an index of your own, name it in TROUPE_PIP_ARGS; ' +
      'if torch is installed somewhere, set TROUPE_LIBTORCH to its directory instead (docs/install.md).',
  );
}

/** The libraries in a wheel do not depend on Python, so one that torch has no wheel for still fetches one. */
function foreignPython(python: string): string[] {
  const run = spawnSync(python, ['-c', 'import sys; print(sys.version_info[1])'], { encoding: 'utf8' });
  const minor = Number(run.stdout);
  return minor >= 10 && minor <= 14 ? [] : ['--python-version', '3.12'];
}

async function unpack(options: FetchOptions, wheels: string[], tree: string): Promise<void> {
  const status = await runInherited(options.python, ['-c', unpackProgram, tree, ...wheels]);
  if (status === 0) return;
  throw new TroupeError(
    'IO',
    `Unpacking ${wheels.map((wheel) => path.basename(wheel)).join(', ')} into ${options.cache} failed (reason above). ` +
      'It needs about 1 GB of free disk space for a CPU build; free some and run `npx troupe setup` again.',
  );
}

function wheelsIn(directory: string): string[] {
  return readdirSync(directory)
    .filter((name) => name.endsWith('.whl'))
    .map((name) => path.join(directory, name));
}

/** Names of shared libraries that libtorch_cpu.so wants and the dynamic linker does not find. */
export function missingLibraries(torch: LibTorch): string[] {
  const run = spawnSync('ldd', [path.join(torch.libDir, 'libtorch_cpu.so')], { encoding: 'utf8' });
  if (run.status !== 0) return [];
  return [...run.stdout.matchAll(/^\s*(\S+) => not found/gm)].map((match) => match[1] as string);
}

/** No fetch writes nothing into its directory for so long. */
const ABANDONED_AFTER = 24 * 3600 * 1000;

/**
 * Working directories of fetches whose process is gone. The cache may be shared: a process of another host, or of a container with the
 * host's name, is not to be seen here, so they must be of this host, and old.
 */
function removeAbandoned(cache: string): void {
  for (const name of readdirSync(cache)) {
    const own = `${partialPrefix}${hostname()}-`;
    if (!name.startsWith(own)) continue;
    const [, pid] = /^(\d+)-/.exec(name.slice(own.length)) ?? [];
    if (pid === undefined || existsSync(`/proc/${pid}`)) continue;
    const directory = path.join(cache, name);
    if (Date.now() - lastWritten(directory) > ABANDONED_AFTER)
      rmSync(directory, { recursive: true, force: true });
  }
}

/** Milliseconds since 1970, of what was written last into a fetch's directory. Infinity: it has gone meanwhile. */
function lastWritten(directory: string): number {
  try {
    // pip adds its wheels to a directory of their own.
    const inside = readdirSync(directory).map((name) => path.join(directory, name));
    return Math.max(...[directory, ...inside].map((at) => statSync(at).mtimeMs));
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}

function checkVersion(version: string): void {
  const [, minor] = /^2\.(\d+)\.\d+$/.exec(version) ?? [];
  if (supportedMinors.some((supported) => String(supported) === minor)) return;
  throw new TroupeError(
    'INVALID_ARGUMENT',
    `Troupe supports LibTorch ${supportedRange}; ${JSON.stringify(version)} is none of these (expected for example 2.13.0).`,
  );
}

let runningChild: ChildProcess | null = null;

function runInherited(program: string, args: string[]): Promise<number> {
  return new Promise((resolve, reject) => {
    // pip's progress bar goes to stderr with the rest: stdout stays for what the command itself has to say. Where this process outlives its
    // terminal, the child is not told of the end of that.
    const child = spawn(program, args, { stdio: ['ignore', 2, 2], detached: ignoresHangups() });
    runningChild = child;
    child.once('error', (error) => {
      reject(
        new TroupeError('IO', `Cannot start ${program}: ${error.message}. Install Python 3 with pip.`, {
          cause: error,
        }),
      );
    });
    child.once('close', (code, signal) => resolve(signal ? 1 : (code ?? 1)));
  });
}
