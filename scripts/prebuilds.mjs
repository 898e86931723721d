// Fills prebuilds/<platform>-<arch>/ with the addon for the LibTorch that discovery finds, named after its minor
// version and cpu or its CUDA: troupe.libtorch2.13.cpu.node. Run once for each LibTorch to be supported:
//   TROUPE_LIBTORCH=<dir> npm run prebuilds [-- --cuda]
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const require = createRequire(import.meta.url);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const { findLibTorch } = require('../dist/native/discovery.js');
const { prebuiltName } = require('../dist/native/addons.js');
const prebuildify = require('prebuildify');

const cuda = process.argv.includes('--cuda');
const libtorch = findLibTorch();
const name = prebuiltName(libtorch.minor, cuda ? libtorch.variant : 'cpu');
process.env.TROUPE_BUILD_FLAGS = cuda ? '--no-rpath --cuda' : '--no-rpath';
process.env.TROUPE_LIBTORCH = libtorch.dir;
// The shim compiles nothing against Node's headers: where they came with Node, node-gyp need not download them.
const prefix = path.resolve(path.dirname(process.execPath), '..');
if (existsSync(path.join(prefix, 'include', 'node', 'node.h'))) process.env.npm_config_nodedir ??= prefix;

prebuildify({ cwd: root, name, napi: true, strip: true, targets: [process.version] }, (error) => {
  if (error) {
    console.error(`troupe: prebuildify: ${error.message}`);
    process.exit(1);
  }
  console.log(`prebuilds/${process.platform}-${process.arch}/${name}.node`);
});
