// npm run bench -- --peer DIR: our core and the peers, side by side on one case. See docs/benchmarks.md.
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Case } from './case.mjs';
import { combine, compare, NATIVE_CALL, OPERATIONS, renderTables } from './measure.mjs';
import { Python, runProgram } from './python.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = resolve(HERE, '..');
const WORK = join(ROOT, '.troupe');
const USAGE = `usage: npm run bench -- --peer DIR [options]
  --peer DIR          the peers' scripts: make_case.py, peer_hf.py (without it: our side only, on a case made before)
  --case NAME|DIR     preset of make_case.py, or a case directory (default cpu-40m)
  --variants a,b      of peer_hf.py: padded, packed, compile (default padded,packed)
  --ops a,b           of ${OPERATIONS.join(', ')} (default all)
  --rounds N          how often all sides take turns (default 2)
  --repeat N          timed runs per side and round (default 3)
  --warmup N          untimed runs before them (default 1)
  --threads N         compute threads of every side (default 2)
  --dtype fp32|bf16   (default fp32)
  --device cpu|cuda   (default cpu)
  --micro-tokens N    tokens per micro-batch (default 4096)`;

const options = {
  peer: { type: 'string' },
  case: { type: 'string', default: 'cpu-40m' },
  variants: { type: 'string', default: 'padded,packed' },
  ops: { type: 'string', default: OPERATIONS.join(',') },
  rounds: { type: 'string', default: '2' },
  repeat: { type: 'string', default: '3' },
  warmup: { type: 'string', default: '1' },
  threads: { type: 'string', default: '2' },
  dtype: { type: 'string', default: 'fp32' },
  device: { type: 'string', default: 'cpu' },
  'micro-tokens': { type: 'string', default: '4096' },
  help: { type: 'boolean', short: 'h', default: false },
};

function readArguments() {
  try {
    return parseArgs({ options, allowPositionals: false }).values;
  } catch (error) {
    console.error(`${error.message}\n${USAGE}`);
    process.exit(2);
  }
}

async function caseDirectory(args, python) {
  if (existsSync(join(args.case, 'case.json'))) return resolve(args.case);
  const directory = join(WORK, 'bench', args.case);
  if (existsSync(join(directory, 'case.json'))) return directory;
  if (!args.peer)
    throw new Error(`there is no case ${directory}: pass --peer DIR, whose make_case.py creates it`);
  console.error(`making the case ${args.case}`);
  await python.jsonLines(join(args.peer, 'make_case.py'), [directory, '--preset', args.case]);
  return directory;
}

const common = (args) =>
  ['ops', 'repeat', 'warmup', 'threads', 'dtype', 'device', 'micro-tokens'].flatMap((name) => [
    `--${name}`,
    args[name],
  ]);

/** One round of our side. The worker logs each native call, which gives the time that is not spent in it. */
async function runOurs(directory, args) {
  const lines = [];
  const native = {};
  await runProgram(process.execPath, [join(HERE, 'subject.mjs'), directory, ...common(args)], {
    env: { TROUPE_TRACE_NATIVE_CALLS: '1' },
    onLine: (line) => lines.push(JSON.parse(line)),
    onError: (line) => {
      const call = line.match(/\[native #\d+\] (\w+) done in ([\d.]+) ms/);
      if (call) native[call[1]] = [...(native[call[1]] ?? []), Number(call[2]) / 1000];
      else if (!line.includes('[native #')) console.error(line);
    },
  });
  for (const line of lines) {
    const calls = native[NATIVE_CALL[line.op]].splice(0, Number(args.warmup) + Number(args.repeat));
    line.native_all = calls.slice(Number(args.warmup));
  }
  return lines;
}

/** A side that died becomes an error line per operation, so that the others still count. */
const failed =
  (variant, args) =>
  ({ message }) =>
    args.ops.split(',').map((op) => ({ peer: 'hf', variant, op, error: message }));

async function measureAll(directory, args, python) {
  const lines = [];
  const take = (side, found) => {
    for (const line of found) console.log(JSON.stringify(line));
    lines.push(...found);
    console.error(`${side}: ${found.length} results`);
  };
  for (let round = 1; round <= Number(args.rounds); round++) {
    console.error(`round ${round} of ${args.rounds}`);
    take('troupe', await runOurs(directory, args));
    if (!args.peer) continue;
    for (const variant of args.variants.split(',').filter(Boolean)) {
      const script = join(args.peer, 'peer_hf.py');
      const flags = [directory, '--variant', variant, '--malloc', 'keep', ...common(args)];
      take(variant, await python.jsonLines(script, flags).catch(failed(variant, args)));
    }
  }
  return lines;
}

async function main() {
  const args = readArguments();
  if (args.help) return console.log(USAGE);
  const python = new Python(join(WORK, 'peers'));
  await python.prepare();
  const directory = await caseDirectory(args, python);
  const benchCase = new Case(directory);
  const gemmFlags = ['--threads', args.threads, '--dtype', args.dtype];
  const gemm = await python.jsonLines(join(HERE, 'gemm.py'), [...benchCase.gemmShapes(), ...gemmFlags]);
  const gemmTflops = Math.max(...gemm.map(({ tflops }) => tflops));

  const lines = await measureAll(directory, args, python);
  const records = combine(lines);
  const comparison = compare(records, (op) => benchCase.flops(op), gemmTflops);
  console.log(`\n${renderTables(records, comparison)}`);
  console.log(`\nGEMM rate ${gemmTflops.toFixed(3)} TFLOP/s (${args.dtype}, ${args.threads} threads)`);

  const machine = {
    cpu: cpus()[0]?.model,
    cores: cpus().length,
    memoryGb: totalmem() / 1e9,
    node: process.version,
  };
  const stamp = new Date().toISOString().replace(/[:.]/g, '-');
  const file = join(ROOT, 'runs', 'bench', `${args.case.split('/').pop()}-${stamp}.json`);
  mkdirSync(dirname(file), { recursive: true });
  const result = { case: benchCase.meta, arguments: args, machine, gemm, comparison, records, lines };
  writeFileSync(file, `${JSON.stringify(result, null, 2)}\n`);
  console.log(`results: ${relative(process.cwd(), file)}`);
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
