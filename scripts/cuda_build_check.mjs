// Compiles and links the CUDA build (kernels, NCCL, addon, their C++ tests) into build-cuda/, which needs no GPU, then loads
// the addon and runs the tests, which without a GPU say that they skip. Says so and passes where nvcc or a CUDA build of LibTorch is missing.
//   TROUPE_CUDA_LIBTORCH=<torch directory> npm run test:cuda-build [-- --minutes 20]
// Without TROUPE_CUDA_LIBTORCH it takes the LibTorch that discovery finds, if that is a CUDA build.
import { spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';

const require = createRequire(import.meta.url);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const out = path.join(root, 'build-cuda');
const { values } = commandLine({ options: { minutes: { type: 'string', least: 1, default: '20' } } });
const { findLibTorch } = require('../dist/install/discovery.js');
const started = performance.now();
const limit = Number(values.minutes) * 60_000;

function end(outcome, code = 0) {
  const seconds = Math.round((performance.now() - started) / 1000);
  console.log(`CUDA build: ${outcome}${seconds > 1 ? ` (${seconds} s)` : ''}`);
  process.exit(code);
}

/** Runs a step within what is left of the time, and ends the check when it fails. */
function step(what, program, args, options = {}) {
  const left = Math.max(1, Math.ceil((limit - (performance.now() - started)) / 1000));
  // timeout(1) ends the compilers with the build.
  const command = ['--kill-after=10', String(left), program, ...args];
  const run = spawnSync('timeout', command, { cwd: root, stdio: 'inherit', ...options });
  if (run.status === 124) end(`FAILED: ${what} was not done after ${values.minutes} minutes`, 1);
  if (run.status !== 0) end(`FAILED: ${what} (${run.error?.message ?? run.signal ?? run.status})`, 1);
  return run.stdout;
}

function cudaLibTorch() {
  const dir = process.env.TROUPE_CUDA_LIBTORCH;
  try {
    const libtorch = findLibTorch(dir ? { ...process.env, TROUPE_LIBTORCH: dir } : process.env);
    if (libtorch.variant !== 'cpu') return libtorch;
    end(`skipped, LibTorch ${libtorch.version} is a CPU build (TROUPE_CUDA_LIBTORCH names another)`);
  } catch (error) {
    if (dir) end(`FAILED: TROUPE_CUDA_LIBTORCH: ${error.message}`, 1);
    end('skipped, no LibTorch was found');
  }
}

const libtorch = cudaLibTorch();
if (spawnSync('nvcc', ['--version']).status !== 0) end('skipped, nvcc is not on the PATH');
const definitions = { TROUPE_LIBTORCH: libtorch.dir, TROUPE_TESTS: 'ON', TROUPE_RPATH: 'ON', USE_CUDA: 'ON' };
step('configuring', process.execPath, [
  ...[require.resolve('cmake-js/bin/cmake-js'), 'configure', '--directory', root, '--out', out],
  ...['--config', 'Release', '--log-level', 'error'],
  ...Object.entries(definitions).map((definition) => `--CD${definition.join('=')}`),
]);
const tests = [
  'cuda_kernels_test',
  'cuda_products_test',
  'cuda_vocabulary_shard_test',
  'grouped_gemm_test',
  'token_choices_test',
  'cuda_comm_test',
];
const parallel = String(availableParallelism());
step('building', 'cmake', ['--build', out, '--parallel', parallel, '--target', 'troupe', ...tests]);

// What was linked must also load, with or without a GPU.
const program = 'console.log(JSON.stringify(require(process.argv[1]).buildInfo()))';
const addon = path.join(out, 'Release', 'troupe.node');
const env = { ...process.env, LD_LIBRARY_PATH: path.join(libtorch.dir, 'lib') };
const info = JSON.parse(
  step('loading the addon', process.execPath, ['-e', program, addon], {
    env,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  }),
);
if (!info.cuda) end('FAILED: the addon says that it has no CUDA', 1);
for (const name of tests) {
  const run = spawnSync(path.join(out, name), { stdio: 'inherit', timeout: 300_000 });
  if (run.status !== 0 && run.status !== 77) end(`FAILED: ${name} (${run.signal ?? run.status})`, 1);
}
end(
  `passed, LibTorch ${libtorch.version} (${libtorch.variant}), the addon loads and sees ${info.deviceCount} GPUs`,
);
