// One operation on a device against the same one on the CPU in float32, on a small model with random weights:
// node scripts/gpu_check/probe.mjs forward|update|exactness|ranks|generate --device cuda|cpu. Prints what was compared and by how much it
// differs; ends with 1 where something is outside its limit.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Case } from '../../bench/case.mjs';
import { makeCase } from '../../bench/make_case.mjs';
import { commandLine } from '../command_line.mjs';

const require = createRequire(import.meta.url);
const { Actor, Batch, WorkerGroup } = require('../../dist/index.js');
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const { values: args, positionals } = commandLine({
  options: { device: { type: 'string', default: 'cuda' } },
  words: 1,
});
const [what] = positionals;
const { device } = args;
const THREADS = 4;
const PROMPTS = 4;
const N = 2;

async function probeCase() {
  const directory = path.join(root, '.troupe', 'bench', 'gpu-check-cpu-40m');
  if (!existsSync(path.join(directory, 'case.json')))
    await makeCase(directory, {
      ...{ preset: 'cpu-40m', prompts: PROMPTS, n: N, promptLength: 48, responseLength: 80 },
      ...{ full: false, seed: 1, threads: THREADS, device: 'cpu' },
    });
  return new Case(directory);
}

const made = await probeCase();
const batch = made.batch(Batch);
let failures = 0;

/** A result: `value` must be at most `limit`; NaN is not. */
function report(name, value, limit) {
  const good = value <= limit;
  if (!good) failures += 1;
  console.log(`= ${good ? 'ok    ' : 'FAILED'} ${name}: ${value.toExponential(2)}, at most ${limit}`);
}

function differences(a, b) {
  let [max, sum] = [0, 0];
  a.forEach((value, i) => {
    const d = Math.abs(value - b[i]);
    // Not Math.max alone: it must keep a NaN.
    max = d > max || Number.isNaN(d) ? d : max;
    sum += d;
  });
  return { max, mean: sum / a.length };
}

const relative = (a, b) => Math.abs(a - b) / Math.abs(b);

async function withActor(o, body) {
  const actor = await Actor.create({
    model: made.modelDirectory,
    optim: { lr: 1e-4 },
    maxTokensPerMicroBatch: 512,
    ...(o.group === undefined ? { numThreads: THREADS } : {}),
    ...o,
  });
  try {
    return await body(actor);
  } finally {
    await actor.close();
  }
}

const forward = (o) => withActor(o, (actor) => actor.computeLogProb(batch, { entropy: true }));
const update = (o) =>
  withActor(o, async (actor) => {
    const loss = { entropyCoeff: 0.01, useKlLoss: true, klLossCoef: 0.1 };
    const metrics = await actor.updatePolicy(batch, { loss });
    const { logProbs } = await actor.computeLogProb(batch);
    return { metrics, logProbs };
  });

const CPU = { device: 'cpu', dtype: 'float32' };
/** Of log-probs and of metrics, by dtype: rounding of another order of sums, and of bfloat16 activations. */
const LIMITS = {
  float32: { max: 2e-4, mean: 2e-5, metric: 1e-3 },
  bfloat16: { max: 0.5, mean: 0.05, metric: 0.1 },
};

const probes = {
  async forward() {
    const expected = await forward(CPU);
    for (const dtype of ['float32', 'bfloat16']) {
      const got = await forward({ device, dtype });
      for (const key of ['logProbs', 'entropy']) {
        const { max, mean } = differences(got[key], expected[key]);
        report(`${key} ${dtype}, largest difference from the CPU in float32`, max, LIMITS[dtype].max);
        report(`${key} ${dtype}, mean difference`, mean, LIMITS[dtype].mean);
      }
    }
  },

  async update() {
    const expected = await update(CPU);
    for (const dtype of ['float32', 'bfloat16']) {
      const got = await update({ device, dtype });
      for (const name of ['actor/grad_norm', 'actor/pg_loss', 'actor/entropy']) {
        const error = relative(got.metrics[name], expected.metrics[name]);
        report(`${name} ${dtype}, relative difference from the CPU in float32`, error, LIMITS[dtype].metric);
      }
      const { mean } = differences(got.logProbs, expected.logProbs);
      // An optimiser step is a sign for gradients near zero.
      report(`log-probs after the update ${dtype}, mean difference`, mean, 10 * LIMITS[dtype].mean);
    }
  },

  /** Equality, not closeness; 0 is the only good value. */
  async exactness() {
    const order = Array.from({ length: batch.size }, (_, i) => (i * 3) % batch.size);
    const tokensOf = (b, values, i) => values.slice(b.responseOffsets[i], b.responseOffsets[i + 1]);
    for (const dtype of ['float32', 'bfloat16']) {
      await withActor({ device, dtype }, async (actor) => {
        const { logProbs } = await actor.computeLogProb(batch);
        const again = await actor.computeLogProb(batch);
        report(`${dtype}: the same call twice`, differences(again.logProbs, logProbs).max, 0);
        const reordered = batch.reorder(order);
        const other = (await actor.computeLogProb(reordered)).logProbs;
        const moved = order.map((from, to) =>
          differences(tokensOf(reordered, other, to), tokensOf(batch, logProbs, from)),
        );
        report(`${dtype}: other neighbours in a pack`, Math.max(...moved.map(({ max }) => max)), 0);
        const own = batch.drop('oldLogProbs').with({ oldLogProbs: logProbs });
        const metrics = await actor.updatePolicy(own);
        report(`${dtype}: ppo_kl of the first mini-batch`, Math.abs(metrics['actor/ppo_kl']), 0);
      });
      const small = await withActor({ device, dtype, maxTokensPerMicroBatch: 140 }, (actor) =>
        actor.computeLogProb(batch),
      );
      const large = await withActor({ device, dtype }, (actor) => actor.computeLogProb(batch));
      const { max } = differences(small.logProbs, large.logProbs);
      report(`${dtype}: micro-batches of 140 or 512 tokens`, max, 0);
    }
  },

  /** One model over two workers; on a machine with one GPU both compute on it. */
  async ranks() {
    const one = await update({ device, dtype: 'float32' });
    const group = await WorkerGroup.launch({ worldSize: 2, device, backend: 'gloo', numThreads: 2 });
    try {
      for (const sharding of ['full_shard', 'shard_grad_op']) {
        const two = await update({ group, device, dtype: 'float32', parallel: { sharding } });
        const { max } = differences(two.logProbs, one.logProbs);
        report(`${sharding}, two workers: log-probs after an update, largest difference`, max, 1e-3);
        const norm = relative(two.metrics['actor/grad_norm'], one.metrics['actor/grad_norm']);
        report(`${sharding}, two workers: grad_norm, relative difference`, norm, 1e-4);
      }
    } finally {
      await group.close();
    }
  },

  async generate() {
    const prompts = made.prompts(N);
    const options = { maxNewTokens: 24, stopTokenIds: [], seed: 3 };
    const greedy = (o) => withActor(o, (actor) => actor.generate(prompts, { ...options, temperature: 0 }));
    const tokens = (samples) =>
      Array.from({ length: samples.size }, (_, i) => [...samples.response(i)]).flat();
    const [expected, got] = [await greedy(CPU), await greedy({ device, dtype: 'float32' })].map(tokens);
    report(
      'float32: greedy tokens that are not the CPU’s',
      got.filter((t, i) => t !== expected[i]).length,
      0,
    );
    for (const dtype of ['float32', 'bfloat16']) {
      await withActor({ device, dtype }, async (actor) => {
        const samples = await actor.generate(prompts, { ...options, n: 4 });
        const { logProbs } = await actor.computeLogProb(samples);
        const { max, mean } = differences(samples.get('rolloutLogProbs'), logProbs);
        report(
          `${dtype}: log-probs of the rollout and of training, largest difference`,
          max,
          LIMITS[dtype].max,
        );
        report(`${dtype}: the same, mean`, mean, LIMITS[dtype].mean);
      });
    }
  },
};

if (!(what in probes)) {
  console.error(`probe: expected one of ${Object.keys(probes).join(', ')} but got '${what}'`);
  process.exit(2);
}
await probes[what]();
process.exitCode = failures > 0 ? 1 : 0;
