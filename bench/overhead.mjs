// node bench/overhead.mjs [MODEL] [--sequences 32] [--tokens 256] [--rounds 7]: what it costs that two workers work on one
// model: seconds of an actor with worldSize 2, beside two actors of one worker that do half of the work each at the same time. See
// docs/benchmarks.md. MODEL: a Hugging Face directory; default: a made one of 30 M.
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { commandLine } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';
import { madeModel, makeBatch } from './sharding_case.mjs';

const require = createRequire(import.meta.url);
const { Actor, Batch } = require('../dist/index.js');

const { values, positionals } = commandLine({
  words: 1,
  options: {
    sequences: { type: 'string', least: 1, default: '32' },
    tokens: { type: 'string', least: 1, default: '256' },
    rounds: { type: 'string', least: 1, default: '7' },
  },
});
const model = positionals[0] ?? madeModel();
const [sequences, tokens, rounds] = [values.sequences, values.tokens, values.rounds].map(Number);
const whole = makeBatch(Batch, sequences, tokens);
const half = makeBatch(Batch, sequences / 2, tokens);
const STRATEGIES = ['full_shard', 'shard_grad_op', 'no_shard'];
const VERBS = {
  compute_log_prob: (actor, batch) => actor.computeLogProb(batch, { entropy: true }),
  update_policy: (actor, batch) => actor.updatePolicy(batch),
};

const create = (worldSize, sharding) =>
  Actor.create({
    model,
    worldSize,
    device: 'cpu',
    numThreads: 1,
    parallel: { sharding },
    // One micro-batch on each side.
    maxTokensPerMicroBatch: (sequences / 2) * tokens,
  });

async function seconds(work) {
  const started = performance.now();
  await work();
  return (performance.now() - started) / 1000;
}

console.log(`${cpus().length} cores, 1 thread per worker, ${sequences} sequences of ${tokens} tokens`);
console.log(
  '| strategy | operation | two processes, s | two workers, s | ratio, median of rounds |\n| --- | --- | --- | --- | --- |',
);
for (const sharding of STRATEGIES) {
  const apart = await Promise.all([create(1, sharding), create(1, sharding)]);
  const together = await create(2, sharding);
  for (const [name, verb] of Object.entries(VERBS)) {
    const both = () => Promise.all(apart.map((actor) => verb(actor, half)));
    const one = () => verb(together, whole);
    await both();
    await one();
    const times = [];
    for (let i = 0; i < rounds; i++) times.push([await seconds(both), await seconds(one)]);
    const [separate, group] = [0, 1].map((side) => median(times.map((pair) => pair[side])));
    const ratio = median(times.map(([a, b]) => b / a));
    console.log(
      `| ${sharding} | ${name} | ${separate.toFixed(3)} | ${group.toFixed(3)} | ${ratio.toFixed(3)} |`,
    );
  }
  await Promise.all([...apart, together].map((actor) => actor.close()));
}
