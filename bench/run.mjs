// npm run bench: our core and PyTorch with Hugging Face, side by side on one case. See docs/benchmarks.md.
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { cpus, totalmem } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { refuse } from '../scripts/command_line.mjs';
import { Case } from './case.mjs';
import { readArguments, USAGE } from './cli.mjs';
import { makeCase } from './make_case.mjs';
import { combine, compare } from './measure.mjs';
import { sweepPlot } from './plot.mjs';
import { Python } from './python.mjs';
import { renderChanges, renderTables } from './report.mjs';
import { runHead, runOurs, runPeer } from './sides.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const ROOT = resolve(HERE, '..');
const WORK = join(ROOT, '.troupe');
const DEFAULT_GEOMETRY = '4x4-128+384';

/** A case by name, made when it is not there, or a directory. */
async function caseDirectory(args) {
  if (existsSync(join(args.case, 'case.json'))) return resolve(args.case);
  const geometry = `${args.prompts}x${args.n}-${args['prompt-len']}+${args['response-len']}`;
  const name = `${args.case}${geometry === DEFAULT_GEOMETRY && !args.full ? '' : `-${geometry}`}${args.full ? '-full' : ''}`;
  const directory = join(WORK, 'bench', name);
  if (existsSync(join(directory, 'case.json'))) return directory;
  console.error(`making the case ${name}`);
  mkdirSync(dirname(directory), { recursive: true });
  await makeCase(directory, {
    preset: args.case,
    prompts: Number(args.prompts),
    n: Number(args.n),
    promptLength: Number(args['prompt-len']),
    responseLength: Number(args['response-len']),
    full: args.full,
    seed: 1,
    threads: Number(args.threads),
    device: args.device,
  });
  return directory;
}

async function measureAll(directory, benchCase, args, python) {
  const lines = [];
  const take = (side, found) => {
    for (const line of found) console.log(JSON.stringify(line));
    lines.push(...found);
    console.error(`${side}: ${found.length} results`);
  };
  const head = args.head ?? benchCase.headShape();
  for (let round = 1; round <= Number(args.rounds); round++) {
    console.error(`round ${round} of ${args.rounds}`);
    take('troupe', await runOurs(directory, args));
    if (args.peer) {
      for (const variant of args.variants.split(',').filter(Boolean))
        take(variant, await runPeer(directory, args, variant, python));
    }
    if (args.ops.split(',').includes('linear_log_prob')) take('head', await runHead(head, args, python));
  }
  return lines;
}

/** One case from the start to its tables. */
async function benchmark(args, python) {
  const directory = await caseDirectory(args);
  const benchCase = new Case(directory);
  const gemm = await python.jsonLines(join(HERE, 'gemm.py'), [
    ...benchCase.gemmShapes(),
    ...['threads', 'dtype', 'device'].flatMap((name) => [`--${name}`, args[name]]),
  ]);
  const gemmTflops = Math.max(...gemm.map(({ tflops }) => tflops));
  const records = combine(await measureAll(directory, benchCase, args, python));
  const peak = args['peak-tflops'] === undefined ? null : Number(args['peak-tflops']);
  const comparison = compare(records, (op) => benchCase.flops(op), gemmTflops, peak);
  console.log(`\n${renderTables(records, comparison)}`);
  console.log(`\nGEMM rate ${gemmTflops.toFixed(3)} TFLOP/s (${args.dtype}, ${args.threads} threads)`);
  if (peak !== null) console.log(`MFU = useful FLOPs (docs/benchmarks.md) / seconds / ${peak} TFLOP/s`);
  const { before: _, ...given } = args;
  return { case: benchCase.meta, arguments: given, gemm, comparison, records };
}

/** Sequences of one length after the other; as many of them as fill two micro-batches, at least two. */
async function sweep(args, python) {
  const points = [];
  for (const length of args.sweep.split(',').map(Number)) {
    const prompt = Math.max(8, Math.floor(length / 8));
    const count = Math.max(2, Math.floor((2 * Number(args['micro-tokens'])) / length));
    console.error(`\nsequences of ${length} tokens`);
    const point = await benchmark(
      {
        ...args,
        full: true,
        n: '1',
        prompts: String(count),
        'prompt-len': String(prompt),
        'response-len': String(length - prompt),
        'micro-tokens': String(Math.max(length, Number(args['micro-tokens']))),
      },
      python,
    );
    points.push({ length, ...point });
  }
  return points;
}

/** What is wrong with the command line has an exit code of its own. */
function checkedArguments() {
  try {
    return readArguments(process.argv.slice(2));
  } catch (error) {
    refuse(error.message);
  }
}

async function main() {
  const args = checkedArguments();
  if (args.help) return console.log(USAGE);
  const python = new Python(join(WORK, 'peers'));
  await python.prepare(args.peer !== undefined);
  const points = args.sweep === undefined ? [await benchmark(args, python)] : await sweep(args, python);

  const machine = {
    cpu: cpus()[0]?.model,
    cores: cpus().length,
    memoryGb: totalmem() / 1e9,
    node: process.version,
  };
  const stamp = new Date().toISOString().replace(/[:.]/g, '-');
  const file = join(ROOT, 'runs', 'bench', `${args.case.split('/').pop()}-${stamp}.json`);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, `${JSON.stringify({ machine, points }, null, 2)}\n`);
  console.log(`results: ${relative(process.cwd(), file)}`);
  if (args.sweep !== undefined) {
    const plot = file.replace(/json$/, 'svg');
    writeFileSync(plot, sweepPlot(points));
    console.log(`plot: ${relative(process.cwd(), plot)}`);
  }
  if (args.before !== undefined) console.log(`\n${renderChanges(args.before, points)}`);
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
