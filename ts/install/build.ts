import { spawnSync } from 'node:child_process';
import { createHash, type Hash } from 'node:crypto';
import {
  copyFileSync,
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism, totalmem } from 'node:os';
import path from 'node:path';
import { makeDirectories } from '../base/make_directories';
import { TroupeError } from '../errors';
import { type BuildRecord, localAddon, localRecord, readBuildRecord } from './addons';
import type { LibTorch } from './libtorch';
import { packageRoot, packageVersion } from './package_root';

/** Not cmake-js's default `build`: CMake would overwrite the files that node-gyp keeps there. */
const buildDirectory = path.join(packageRoot, 'build-cmake');
const testStampFile = path.join(buildDirectory, 'troupe-tests.stamp');

export interface BuildOptions {
  libtorch: LibTorch;
  /** Also build the C++ tests. */
  tests: boolean;
  /** Remember LibTorch's directory in the addon; off for addons that are shipped. */
  rpath: boolean;
  /** Compile the CUDA kernels and the NCCL communicator. */
  cuda: boolean;
  /** The CUDA compiler; null: the one that CMake finds. */
  nvcc?: string | null;
  /** Build although nothing changed. */
  force?: boolean;
  /** Where to say what is happening. */
  log: (line: string) => void;
}

export interface BuildResult {
  addon: string;
  /** False when everything was up to date. */
  built: boolean;
}

/**
 * Builds the addon with cmake-js into build-cmake/ and puts it at build/Release/troupe.node; does nothing when
 * neither the sources, nor the options, nor LibTorch changed. An addon that is there stays until the new one is compiled.
 *
 * Throws TroupeError INTERNAL when CMake or the compiler fails (their output has been printed).
 */
export function buildAddon(options: BuildOptions): BuildResult {
  const stamp = sourceStamp(['native', 'cmake', 'CMakeLists.txt'], options);
  const testStamp = sourceStamp(['native', 'cmake', 'CMakeLists.txt', 'test/native'], options);
  const addonFresh = !options.force && existsSync(localAddon) && readBuildRecord()?.stamp === stamp;
  const testsFresh =
    !options.tests || (existsSync(testStampFile) && readFileSync(testStampFile, 'utf8') === testStamp);
  if (addonFresh && testsFresh) return { addon: localAddon, built: false };

  discardForeignBuild();
  const jobs = parallelJobs();
  const tests = options.tests ? ' and the C++ tests' : '';
  options.log(
    `Building the native addon${tests} against LibTorch ${options.libtorch.version}, ${jobs} at a time ...`,
  );
  cmakeJs('configure', [
    `--CDTROUPE_LIBTORCH=${options.libtorch.dir}`,
    `--CDTROUPE_TESTS=${options.tests ? 'ON' : 'OFF'}`,
    `--CDTROUPE_RPATH=${options.rpath ? 'ON' : 'OFF'}`,
    `--CDUSE_CUDA=${options.cuda ? 'ON' : 'OFF'}`,
    ...(options.cuda && options.nvcc ? [`--CDCMAKE_CUDA_COMPILER=${options.nvcc}`] : []),
  ]);
  cmakeJs('build', ['--parallel', String(jobs)]);
  publish({
    stamp,
    libtorch: {
      dir: options.libtorch.dir,
      version: options.libtorch.version,
      variant: options.libtorch.variant,
    },
    cuda: options.cuda,
  });
  if (options.tests) writeFileSync(testStampFile, testStamp);
  return { addon: localAddon, built: true };
}

function cmakeJs(command: 'configure' | 'build', args: string[]): void {
  const tool = createRequire(__filename).resolve('cmake-js/bin/cmake-js');
  const common = [
    '--directory',
    packageRoot,
    '--out',
    buildDirectory,
    '--config',
    'Release',
    '--log-level',
    'error',
  ];
  const run = spawnSync(process.execPath, [tool, command, ...common, ...args], {
    stdio: 'inherit',
    cwd: packageRoot,
  });
  if (run.status === 0) return;
  const how = run.signal ? `was ended by ${run.signal}` : `failed with exit code ${run.status}`;
  throw new TroupeError(
    'INTERNAL',
    `The native build (cmake-js ${command}) ${how}; the first error is above. ` +
      '`npx troupe doctor` checks the tools it needs; `npm run clean` starts it afresh.',
  );
}

/** Copy, then rename: a process that has the old addon mapped keeps its old file. */
function publish(record: BuildRecord): void {
  makeDirectories(path.dirname(localAddon));
  const partial = `${localAddon}.${process.pid}.partial`;
  copyFileSync(path.join(buildDirectory, 'Release', 'troupe.node'), partial);
  // Of the addon before: what it says would be wrong if this ended here.
  rmSync(localRecord, { force: true });
  renameSync(partial, localAddon);
  writeFileSync(localRecord, `${JSON.stringify(record, null, 2)}\n`);
}

/** CMake refuses a build directory that was configured elsewhere (a moved checkout) or for another generator. */
function discardForeignBuild(): void {
  const cache = path.join(buildDirectory, 'CMakeCache.txt');
  if (!existsSync(cache)) return;
  const text = readFileSync(cache, 'utf8');
  const home = /^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$/m.exec(text)?.[1];
  const program = /^CMAKE_MAKE_PROGRAM:\w+=(.*)$/m.exec(text)?.[1];
  const same = home === packageRoot && program !== undefined && existsSync(program);
  if (!same) rmSync(buildDirectory, { recursive: true, force: true });
}

function sourceStamp(sources: string[], options: BuildOptions): string {
  const hash = createHash('sha256');
  const { dir, version } = options.libtorch;
  hash.update(JSON.stringify([dir, version, options.rpath, options.cuda, process.arch, packageVersion()]));
  for (const source of sources) hashTree(hash, path.join(packageRoot, source));
  return hash.digest('hex');
}

function hashTree(hash: Hash, file: string): void {
  if (!existsSync(file)) return;
  if (statSync(file).isDirectory()) {
    for (const name of readdirSync(file).sort()) hashTree(hash, path.join(file, name));
    return;
  }
  hash.update(path.relative(packageRoot, file)).update('\0').update(readFileSync(file)).update('\0');
}

/**
 * What CMAKE_BUILD_PARALLEL_LEVEL says, as with CMake itself. Else one compiler per core, but no more than memory
 * carries: a file that includes LibTorch takes about 1.5 GB.
 */
function parallelJobs(): number {
  const asked = Number(process.env['CMAKE_BUILD_PARALLEL_LEVEL']);
  if (Number.isInteger(asked) && asked > 0) return asked;
  const byMemory = Math.floor(totalmem() / 2 ** 30 / 1.5);
  return Math.max(1, Math.min(availableParallelism(), byMemory));
}
