// node bench/zero_advantages.mjs [MODEL] [--sequences 32] [--tokens 256] [--rounds 5]: seconds of a policy update by the share of
// sequences whose advantages are all zero. See docs/benchmarks.md. MODEL: a Hugging Face directory; default: a made one of 30 M.
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { commandLine } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';
import { madeModel, makeBatch } from './sharding_case.mjs';

const { Actor, Batch } = createRequire(import.meta.url)('../dist/index.js');

const { values, positionals } = commandLine({
  words: 1,
  options: {
    sequences: { type: 'string', least: 1, default: '32' },
    tokens: { type: 'string', least: 1, default: '256' },
    rounds: { type: 'string', least: 1, default: '5' },
  },
});
const [sequences, tokens, rounds] = [values.sequences, values.tokens, values.rounds].map(Number);
const SHARES = [0, 0.25, 0.5, 0.75, 1];

/** The first `share` of the sequences with advantages of zero. */
function batchWith(share) {
  const batch = makeBatch(Batch, sequences, tokens);
  const end = batch.responseOffsets[Math.round(share * sequences)];
  const advantages = batch.get('advantages').map((value, t) => (t < end ? 0 : value));
  return batch.drop('advantages').with({ advantages });
}

const actor = await Actor.create({
  model: positionals[0] ?? madeModel(),
  worldSize: 1,
  device: 'cpu',
  numThreads: cpus().length,
  maxTokensPerMicroBatch: 4096,
});
const batches = SHARES.map(batchWith);
const times = SHARES.map(() => []);
for (let round = -1; round < rounds; round++) {
  for (const [i, batch] of batches.entries()) {
    const started = performance.now();
    await actor.updatePolicy(batch);
    if (round >= 0) times[i].push((performance.now() - started) / 1000);
  }
}
await actor.close();
console.log(`${cpus().length} cores, ${sequences} sequences of ${tokens} tokens, median of ${rounds} rounds`);
console.log(
  '| sequences with advantages of zero | update_policy, s | of the whole |\n| ---: | ---: | ---: |',
);
for (const [i, share] of SHARES.entries()) {
  const ratio = median(times[i].map((seconds, round) => seconds / times[0][round]));
  console.log(`| ${100 * share} % | ${median(times[i]).toFixed(3)} | ${ratio.toFixed(2)} |`);
}
