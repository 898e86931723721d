// Whether the addon is built with CUDA on this machine.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { TroupeError } from '../errors';
import type { LibTorch } from './libtorch';

export interface Nvcc {
  file: string;
  /** '13.0' */
  version: string;
}

export interface CudaChoice {
  /** The compiler to build with; null: without CUDA. */
  nvcc: Nvcc | null;
  /** Why, as a phrase. */
  reason: string;
}

/** What there is to build with. */
export interface CudaTools {
  nvcc(): Nvcc | null;
  /** Why a library cannot be loaded with those that it needs; null: it can. */
  loadProblem(library: string): string | null;
}

/**
 * With CUDA where LibTorch is a CUDA build whose libraries are complete, and there is nvcc of the same CUDA. `asked`: null: so; false:
 * without.
 * @throws TroupeError INVALID_ARGUMENT when it is asked for (true) where it cannot be
 */
export function chooseCuda(
  libtorch: Pick<LibTorch, 'variant' | 'libDir'>,
  asked: boolean | null,
  tools: CudaTools = systemTools,
): CudaChoice {
  const without = (reason: string): CudaChoice => {
    if (asked !== true) return { nvcc: null, reason };
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `a build with CUDA was asked for, but ${reason}: see docs/cuda.md`,
    );
  };
  if (asked === false) return without('it was asked to be left out');
  if (libtorch.variant === 'cpu') return without('LibTorch is a CPU build');
  const nvcc = tools.nvcc();
  if (nvcc === null)
    return without('there is no nvcc (on the PATH, in CUDACXX, CUDA_HOME or /usr/local/cuda)');
  const needed = majorOf(libtorch.variant);
  if (needed !== null && nvcc.version.split('.')[0] !== needed)
    return without(`${nvcc.file} is of CUDA ${nvcc.version}, and LibTorch was built for ${libtorch.variant}`);
  const problem = tools.loadProblem(path.join(libtorch.libDir, 'libtorch_cuda.so'));
  if (problem !== null) return without(`the CUDA libraries of LibTorch cannot be loaded (${problem})`);
  return {
    nvcc,
    reason: `LibTorch is a build for ${libtorch.variant}, and ${nvcc.file} is of CUDA ${nvcc.version}`,
  };
}

/** TROUPE_CUDA=0 leaves CUDA out, 1 insists on it; null: neither. @throws TroupeError INVALID_ARGUMENT for anything else */
export function askedByEnvironment(env: NodeJS.ProcessEnv = process.env): boolean | null {
  const value = env['TROUPE_CUDA'] ?? '';
  if (value === '') return null;
  if (value === '0' || value === '1') return value === '1';
  throw new TroupeError('INVALID_ARGUMENT', `TROUPE_CUDA: expected 0 or 1, got ${JSON.stringify(value)}`);
}

/** cu130: 13; cu118: 11. */
const majorOf = (variant: string): string | null => /^cu(\d+)\d$/.exec(variant)?.[1] ?? null;

/** nvcc of this machine; null: there is none that runs. */
export function findNvcc(env: NodeJS.ProcessEnv = process.env): Nvcc | null {
  const onPath = (env['PATH'] ?? '').split(path.delimiter).map((folder) => path.join(folder, 'nvcc'));
  const toolkits = [env['CUDA_HOME'], env['CUDA_PATH'], '/usr/local/cuda'];
  const inToolkits = toolkits.flatMap((folder) => (folder ? [path.join(folder, 'bin', 'nvcc')] : []));
  for (const file of [env['CUDACXX'] ?? '', ...onPath, ...inToolkits]) {
    if (!path.isAbsolute(file) || !existsSync(file)) continue;
    const run = spawnSync(file, ['--version'], { encoding: 'utf8', env, timeout: 30_000 });
    const version = run.status === 0 ? /release (\d+\.\d+)/.exec(run.stdout)?.[1] : undefined;
    if (version !== undefined) return { file, version };
  }
  return null;
}

/** In a process of its own. What is no addon is refused by Node, but only when the system has loaded it. */
function loadProblem(library: string): string | null {
  const program =
    'try { process.dlopen({ exports: {} }, process.argv[1]) } catch (e) { console.log(e.message) }';
  const libraries = [path.dirname(library), process.env['LD_LIBRARY_PATH']]
    .filter(Boolean)
    .join(path.delimiter);
  const run = spawnSync(process.execPath, ['-e', program, library], {
    encoding: 'utf8',
    env: { ...process.env, LD_LIBRARY_PATH: libraries },
    timeout: 120_000,
  });
  if (run.status !== 0) return `the attempt ended with ${run.signal ?? `exit code ${run.status}`}`;
  const said = run.stdout.trim();
  return said === '' || said.includes('did not self-register') ? null : (said.split('\n')[0] ?? said);
}

export const systemTools: CudaTools = { nvcc: () => findNvcc(), loadProblem };
