// Packs what a check on a bare GPU machine needs into one archive, with the script that unpacks and starts it:
//   node scripts/gpu-pack.mjs DIR [--max-mib 60] [--beside-checkout] [--no-node] [--root CHECKOUT]
// DIR gets pack.tar.xz and run.sh. There, `bash DIR/run.sh OUT_DIR [options of scripts/gpu-check.sh]` does the rest, without a network
// and without Node. Says how large each part is; an archive larger than the limit is refused and not left behind.
//   --beside-checkout   for a DIR that travels inside the checkout: without what the checkout has, which run.sh takes from there
//   --no-node           the machine has Node
import { spawn, spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  createWriteStream,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { packParts } from './gpu_check/pack_parts.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
const MIB = 2 ** 20;

function fail(message) {
  console.error(`gpu-pack: ${message}`);
  process.exit(1);
}

function readArguments() {
  const options = {
    'max-mib': { type: 'string', default: '60' },
    'beside-checkout': { type: 'boolean', default: false },
    'no-node': { type: 'boolean', default: false },
    root: { type: 'string', default: root },
  };
  try {
    const { values, positionals } = parseArgs({ options, allowPositionals: true });
    if (positionals.length !== 1) throw new Error('expected one directory for the pack');
    if (!(Number(values['max-mib']) > 0))
      throw new Error(`--max-mib: expected a positive number but got '${values['max-mib']}'`);
    return { ...values, directory: path.resolve(positionals[0]) };
  } catch (error) {
    return fail(error.message);
  }
}

/** Bytes of `files`, compressed on their own. */
async function compressed(from, files, file) {
  const list = path.join(path.dirname(file), 'files.txt');
  writeFileSync(list, files.map((name) => `${name}\n`).join(''));
  const tar = spawn('tar', ['-chf', '-', '-C', from, '--no-recursion', '--files-from', list], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const xz = spawn('xz', ['-6', '--stdout'], { stdio: [tar.stdout, 'pipe', 'inherit'] });
  const out = createWriteStream(file);
  xz.stdout.pipe(out);
  const codes = await Promise.all(
    [tar, xz].map(
      (child) =>
        new Promise((done, stop) => {
          child.on('error', stop);
          child.on('exit', done);
        }),
    ),
  );
  if (!out.writableFinished) await new Promise((done) => out.on('finish', done));
  if (codes.some((code) => code !== 0)) throw new Error(`tar or xz ended with ${codes.join(' and ')}`);
  return statSync(file).size;
}

/** Node itself, without the symbols that nothing needs to run. */
function stageNode(scratch) {
  const file = path.join(scratch, '.node', 'bin', 'node');
  mkdirSync(path.dirname(file), { recursive: true });
  copyFileSync(process.execPath, file);
  chmodSync(file, 0o755);
  spawnSync('strip', [file]);
  return '.node/bin/node';
}

function describe(of) {
  const git = spawnSync('git', ['describe', '--always', '--dirty'], { cwd: of, encoding: 'utf8' });
  return git.status === 0 ? git.stdout.trim() : 'unknown';
}

async function pack(args, scratch) {
  const all = packParts(args.root).filter(({ files }) => files.length > 0);
  const parts = all.filter(({ tracked }) => !(tracked && args['beside-checkout']));
  const left = all.filter((part) => !parts.includes(part)).flatMap(({ files }) => files);
  writeFileSync(
    path.join(scratch, 'pack.json'),
    `${JSON.stringify({ commit: describe(args.root), node: process.version })}\n`,
  );
  writeFileSync(path.join(scratch, 'from-checkout.txt'), left.map((name) => `${name}\n`).join(''));
  const own = ['pack.json', 'from-checkout.txt', ...(args['no-node'] ? [] : [stageNode(scratch)])];
  const archives = [];
  let total = 0;
  for (const { name, from, files } of [
    { name: args['no-node'] ? 'manifest' : 'Node', from: scratch, files: own },
    ...parts.map((part) => ({ ...part, from: args.root })),
  ]) {
    const file = path.join(scratch, `${archives.length}.xz`);
    const bytes = await compressed(from, files, file);
    archives.push(file);
    total += bytes;
    console.log(`${(bytes / MIB).toFixed(2).padStart(7)} MiB  ${name} (${files.length} files)`);
  }
  console.log(`${(total / MIB).toFixed(2).padStart(7)} MiB  in all`);
  if (total > Number(args['max-mib']) * MIB)
    throw new Error(
      `the pack has ${(total / MIB).toFixed(1)} MiB, more than the ${args['max-mib']} MiB that may travel`,
    );
  return archives;
}

const args = readArguments();
const scratch = mkdtempSync(path.join(tmpdir(), 'troupe-gpu-pack-'));
try {
  const archives = await pack(args, scratch);
  mkdirSync(args.directory, { recursive: true });
  const file = path.join(args.directory, 'pack.tar.xz');
  // Archives in xz may follow each other in one file, and so may those of tar (--ignore-zeros).
  const whole = spawnSync('cat', archives, { stdio: ['ignore', 'pipe', 'inherit'], maxBuffer: 2 ** 31 });
  if (whole.status !== 0) throw new Error('cat failed');
  writeFileSync(`${file}.partial`, whole.stdout);
  renameSync(`${file}.partial`, file);
  copyFileSync(path.join(root, 'scripts', 'gpu_check', 'run.sh'), path.join(args.directory, 'run.sh'));
  console.log(`${file}\nthere: bash run.sh OUT_DIR`);
} catch (error) {
  fail(error.message);
} finally {
  rmSync(scratch, { recursive: true, force: true });
}
