// Fills prebuilds/<platform>-<arch>/ with the addon for the LibTorch that discovery finds, named after its minor
// version and cpu or its CUDA: troupe.libtorch2.13.cpu.node. Run once for each LibTorch to be supported:
//   TROUPE_LIBTORCH=<dir> npm run prebuilds [-- --cuda]
// Each file is stripped, gets a record of what it was made from (.json), and must not need more of a system than
// docs/install.md states.
import { existsSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from './command_line.mjs';
import { inspect, record } from './prebuilt_record.mjs';

const require = createRequire(import.meta.url);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const { findLibTorch } = require('../dist/install/discovery.js');
const { prebuiltName, prebuildsDirectory } = require('../dist/install/addons.js');
const { version } = require('../package.json');
const prebuildify = require('prebuildify');

const cuda = commandLine({ options: { cuda: { type: 'boolean' } } }).values.cuda === true;
const libtorch = findLibTorch();
const name = prebuiltName(libtorch.minor, cuda ? libtorch.variant : 'cpu');
process.env.TROUPE_BUILD_FLAGS = cuda ? '--no-rpath --cuda' : '--no-rpath';
process.env.TROUPE_LIBTORCH = libtorch.dir;
// The shim compiles nothing against Node's headers: where they came with Node, node-gyp need not download them.
const prefix = path.resolve(path.dirname(process.execPath), '..');
if (existsSync(path.join(prefix, 'include', 'node', 'node.h'))) process.env.npm_config_nodedir ??= prefix;

/** An addon that fails the check is removed: it must not be shipped by accident. */
function finish() {
  const directory = prebuildsDirectory(root);
  const file = path.join(directory, `${name}.node`);
  const { problems } = inspect(file);
  if (problems.length > 0) {
    rmSync(file);
    throw new Error(`${name}.node cannot be shipped: ${problems.join('; ')}`);
  }
  writeFileSync(
    path.join(directory, `${name}.json`),
    `${JSON.stringify(record(file, { libtorch, version }), null, 2)}\n`,
  );
  for (const entry of readdirSync(directory).sort()) {
    const size = (statSync(path.join(directory, entry)).size / 2 ** 20).toFixed(2);
    console.log(`${size.padStart(7)} MB  ${path.relative(root, path.join(directory, entry))}`);
  }
}

prebuildify({ cwd: root, name, napi: true, strip: true, targets: [process.version] }, (error) => {
  try {
    if (error) throw error;
    finish();
  } catch (failure) {
    console.error(`troupe: prebuilds: ${failure.message}`);
    process.exit(1);
  }
});
