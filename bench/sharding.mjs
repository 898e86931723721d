// node bench/sharding.mjs [MODEL] [--workers 4] [--updates 1] [--prefetch] [--reduce mini_batch] [--offload]: memory per rank (on its
// device and its host) and bytes sent per update for every strategy, beside the theory, and seconds per update. See docs/benchmarks.md. MODEL: a Hugging Face directory; default: a made one of 30 M.
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { commandLine } from '../scripts/command_line.mjs';
import { madeModel, makeBatch } from './sharding_case.mjs';

const require = createRequire(import.meta.url);
const { Actor, Batch } = require('../dist/index.js');

const MIB = 2 ** 20;
const SEQUENCES = 16;
const TOKENS = 64;
const CAPACITY = 512;

const { values, positionals } = commandLine({
  words: 1,
  options: {
    workers: { type: 'string', least: 1, default: '4' },
    updates: { type: 'string', least: 1, default: '1' },
    prefetch: { type: 'boolean', default: false },
    reduce: { type: 'string', default: 'micro_batch' },
    offload: { type: 'boolean', default: false },
  },
});
const workers = Number(values.workers);
const updates = Number(values.updates);

/** Elements of every group of parameters that is gathered at once, as the ranks hold them. */
function groupSizes(parameters, parts) {
  const groups = new Map();
  for (const { name, shape } of parameters) {
    const group = /^layers\.\d+/.exec(name)?.[0] ?? (name.includes('embed') ? 'embed' : 'head');
    const count = shape.reduce((all, size) => all * size, 1);
    groups.set(group, (groups.get(group) ?? 0) + Math.ceil(count / 16) * 16);
  }
  return [...groups].map(([name, count]) => ({ name, count: Math.ceil(count / (16 * parts)) * 16 * parts }));
}

/** Bytes that a rank sends in one update of one mini-batch: the table of docs/distributed.md. */
function theory(sharding, groups, rounds) {
  const share = (workers - 1) / workers;
  const whole = groups.reduce((sum, { count }) => sum + count, 0);
  if (workers === 1) return 0;
  if (sharding === 'no_shard') return 8 * whole * share;
  const last = groups.findLast(({ name }) => name.startsWith('layers.'));
  const once = groups.filter((g) => !g.name.startsWith('layers.') || g === last);
  const first = once.reduce((sum, { count }) => sum + count, 0);
  const gathered = sharding === 'full_shard' ? rounds * (2 * whole - first) : whole;
  const reductions = values.reduce === 'mini_batch' ? 1 : rounds;
  return 4 * (gathered + reductions * whole) * share;
}

async function measure(model, worldSize, sharding) {
  const actor = await Actor.create({
    model,
    worldSize,
    device: 'cpu',
    parallel: { sharding, prefetch: values.prefetch, reduce: values.reduce },
    offload: { params: values.offload, grads: values.offload, optimizer: values.offload },
    maxTokensPerMicroBatch: CAPACITY,
    gradientCheckpointing: true,
  });
  try {
    const { group } = actor.engine;
    const all = (method) => group.callAll(actor.name, method, () => []);
    const batch = makeBatch(Batch, SEQUENCES, TOKENS);
    await actor.updatePolicy(batch);
    const before = await all('bytesSent');
    const started = performance.now();
    for (let i = 0; i < updates; i++) await actor.updatePolicy(batch);
    const seconds = (performance.now() - started) / 1000 / updates;
    const after = await all('bytesSent');
    const [parameters] = await all('parameters');
    const total = (s) => s.parameters + s.gradients + s.moments;
    const state = (await all('stateBytes')).map((s) => total(s) + total(s.host));
    const peak = (await group.memoryInfo()).map((info) => info.peakRss);
    return {
      state: Math.max(...state),
      peak: Math.max(...peak),
      sent: Math.max(...after.map((bytes, rank) => (bytes - before[rank]) / updates)),
      groups: groupSizes(parameters, sharding === 'no_shard' ? 1 : worldSize),
      seconds,
    };
  } finally {
    await actor.close();
  }
}

const model = positionals[0] ?? madeModel();
console.log(
  `${cpus().length} cores, ${workers} workers, ${SEQUENCES} sequences of ${TOKENS} tokens, capacity ${CAPACITY}`,
);
console.log(
  '| strategy | workers | state, MiB per rank | share of one process | peak RSS, MiB | sent, MiB per rank and update | in theory | s per update |',
);
console.log('| --- | --- | --- | --- | --- | --- | --- | --- |');
const one = await measure(model, 1, 'full_shard');
const row = (name, n, r, expected) =>
  console.log(
    `| ${name} | ${n} | ${(r.state / MIB).toFixed(1)} | ${(r.state / one.state).toFixed(4)} | ${(r.peak / MIB).toFixed(0)} | ` +
      `${(r.sent / MIB).toFixed(2)} | ${(expected / MIB).toFixed(2)} | ${r.seconds.toFixed(2)} |`,
  );
row('one process', 1, one, 0);
const rounds = Math.ceil(((SEQUENCES / workers) * TOKENS) / CAPACITY);
for (const sharding of ['full_shard', 'shard_grad_op', 'no_shard']) {
  const result = await measure(model, workers, sharding);
  row(sharding, workers, result, theory(sharding, result.groups, rounds));
}
