// The check on a GPU, stage by stage; scripts/gpu-check.sh finds Node, Python and LibTorch and starts it.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Runner, State } from './runner.mjs';
import { stagesFor } from './stages.mjs';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const options = {
  device: { type: 'string', default: 'cuda' },
  stages: { type: 'string' },
  again: { type: 'string', default: '' },
  seconds: { type: 'string', default: '570' },
  work: { type: 'string' },
  resume: { type: 'string' },
  list: { type: 'boolean', default: false },
};

const refuse = (message) => {
  console.error(`gpu-check: ${message}`);
  process.exit(2);
};

/** What the results are results of: the pack's own name for itself, else the commit. */
function identity() {
  const manifest = path.join(root, 'pack.json');
  if (existsSync(manifest)) return JSON.parse(readFileSync(manifest, 'utf8')).commit;
  const git = spawnSync('git', ['describe', '--always', '--dirty'], { cwd: root, encoding: 'utf8' });
  return git.status === 0 ? git.stdout.trim() : 'unknown';
}

/** Where Python finds the peers: the torch that is built against, and what bench/python.mjs has installed. */
function peerPath() {
  const site = path.join(root, '.troupe', 'peers', 'site');
  return existsSync(path.join(libtorch, '__init__.py')) ? `${path.dirname(libtorch)}:${site}` : site;
}

/** The named stages; unknown names are refused. */
function chosen(text, stages) {
  const names = text.split(',').filter(Boolean);
  const unknown = names.find((name) => !stages.some((stage) => stage.name === name));
  if (unknown !== undefined)
    refuse(
      `expected stages of ${stages.map(({ name }) => name).join(', ')} but got '${unknown}'; --list prints them`,
    );
  return names;
}

function readArguments() {
  try {
    const { values, positionals } = parseArgs({ options, allowPositionals: true });
    if (!['cpu', 'cuda'].includes(values.device))
      throw new Error(`--device: expected cuda or cpu but got '${values.device}'`);
    if (!/^[1-9]\d*$/.test(values.seconds))
      throw new Error(`--seconds: expected a positive integer but got '${values.seconds}'`);
    if (positionals.length !== 1 && !values.list)
      throw new Error(`expected one directory for the results but got ${positionals.length}`);
    return { ...values, out: positionals[0] };
  } catch (error) {
    return refuse(error.message);
  }
}

const args = readArguments();
const jobs = Number(process.env.CMAKE_BUILD_PARALLEL_LEVEL) || availableParallelism();
const libtorch = process.env.TROUPE_LIBTORCH ?? '';
const stages = stagesFor({ root, device: args.device, libtorch, jobs });
if (args.list) {
  for (const { name, limit, needs = [] } of stages)
    console.log(
      `${name.padEnd(18)} at most ${String(limit).padStart(3)} s${needs.length > 0 ? `, needs ${needs.join(', ')}` : ''}`,
    );
  process.exit(0);
}
const work = path.resolve(args.work ?? path.join(root, '.troupe', `gpu-check-${args.device}`));
mkdirSync(work, { recursive: true });
const commit = identity();
const again = chosen(args.again, stages);
const names = args.stages === undefined ? stages.map(({ name }) => name) : chosen(args.stages, stages);
try {
  const state = new State(work, { pack: commit, device: args.device });
  if (args.resume !== undefined) state.take(args.resume);
  const runner = new Runner({
    out: path.resolve(args.out),
    work,
    seconds: Number(args.seconds),
    state,
    stages,
    env: { GPU_CHECK_WORK: work, GPU_CHECK_PEER_PATH: peerPath() },
    title: `gpu-check of ${commit} on ${args.device}, ${new Date().toISOString()}`,
  });
  process.chdir(root);
  process.exitCode = await runner.run(names, again);
} catch (error) {
  refuse(error.message);
}
