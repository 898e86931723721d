// The one entry to the native build: `npm run build:native`, and the action of binding.gyp (node-gyp, prebuildify).
//   --tests            also build the C++ tests
//   --cuda             compile the CUDA kernels and the NCCL communicator
//   --no-rpath         do not remember where LibTorch is (for addons that are shipped)
// The last three can also be asked for through TROUPE_BUILD_FLAGS, which reaches through node-gyp.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';

const require = createRequire(import.meta.url);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const { values } = commandLine({
  args: [...process.argv.slice(2), ...(process.env.TROUPE_BUILD_FLAGS ?? '').split(' ').filter(Boolean)],
  options: { tests: { type: 'boolean' }, cuda: { type: 'boolean' }, 'no-rpath': { type: 'boolean' } },
});

if (!existsSync(path.join(root, 'dist', 'install', 'build.js'))) {
  const tsc = spawnSync('npm', ['run', '--silent', 'build'], { cwd: root, stdio: 'inherit' });
  if (tsc.status !== 0) process.exit(1);
}
const { buildAddon } = require('../dist/install/build.js');
const { findLibTorch } = require('../dist/install/discovery.js');
try {
  const { addon, built } = buildAddon({
    libtorch: findLibTorch(),
    tests: values.tests ?? false,
    rpath: !values['no-rpath'],
    cuda: values.cuda ?? false,
    log: console.log,
  });
  console.log(built ? `Built ${addon}` : `${addon} is up to date`);
} catch (error) {
  console.error(`\ntroupe: ${error.code ? error.message : error.stack}`);
  process.exit(1);
}
