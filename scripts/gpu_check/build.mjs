// The addon for the LibTorch of this machine: a prebuilt one that was brought along and fits, else compiled here. Says which,
// and leaves build/gpu-check.json.
import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from '../command_line.mjs';

const require = createRequire(import.meta.url);
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const { values } = commandLine({ options: { device: { type: 'string', default: 'cuda' } } });
const { addonFor, listAddons } = require('../../dist/install/addons.js');
const { findLibTorch } = require('../../dist/install/discovery.js');

const libtorch = findLibTorch();
const cuda = values.device === 'cuda';
const prebuilt = addonFor(
  listAddons().filter(({ kind }) => kind === 'prebuilt'),
  libtorch,
);
const fits = prebuilt !== null && (!cuda || prebuilt.variant === libtorch.variant);
if (fits) console.log(`= the prebuilt addon ${path.basename(prebuilt.file)}`);
else {
  const started = performance.now();
  const script = path.join(root, 'scripts', 'build_native.mjs');
  const run = spawnSync(process.execPath, [script, ...(cuda ? ['--cuda'] : [])], { stdio: 'inherit' });
  if (run.status !== 0) process.exit(run.status ?? 1);
  const seconds = Math.round((performance.now() - started) / 1000);
  console.log(`= compiled against LibTorch ${libtorch.version} (${libtorch.variant}) in ${seconds} s`);
}
mkdirSync(path.join(root, 'build'), { recursive: true });
writeFileSync(
  path.join(root, 'build', 'gpu-check.json'),
  `${JSON.stringify({ libtorch: libtorch.version, variant: libtorch.variant, prebuilt: fits })}\n`,
);
