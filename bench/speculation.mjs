// node bench/speculation.mjs [--model DIRECTORY]: what speculative decoding gains and costs in one worker, on cpu-40m (random weights, 2 threads) or another
// model: tokens per second without drafts, where every draft is right (the responses are those of an earlier request of the same seed) and where nearly all
// are wrong (other seeds, and tokens that stand in one of 128 earlier responses by chance), by requests at a time and tokens of a draft.
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { commandLine } from '../scripts/command_line.mjs';
import { writeModel } from './make_case.mjs';
import { median } from './measure.mjs';
import { scratchDirectory } from './scratch.mjs';

const { Actor } = createRequire(import.meta.url)('../dist/index.js');

const { values } = commandLine({
  options: {
    model: { type: 'string' },
    dtype: { type: 'string', default: 'float32' },
    requests: { type: 'string', least: 1, list: true, default: '1,4,8' },
    drafts: { type: 'string', least: 1, list: true, default: '3,7' },
  },
});
const directory = scratchDirectory('speculation');
const model = values.model ?? join(directory, 'model');
if (values.model === undefined) {
  mkdirSync(model);
  writeModel(model, 'cpu-40m', 1);
}

const ROUNDS = 5;
const REMEMBERED = 128;
const LENGTH = 192;
const promptIds = Array.from({ length: 128 }, (_, i) => 1 + ((i * 7919 + i * i) % 31990));

const numbers = (list) => list.split(',').map(Number);

async function withActor(speculative, work) {
  const actor = await Actor.create({
    model,
    optim: null,
    numThreads: 2,
    device: 'cpu',
    dtype: values.dtype,
    rollout: { freeCacheEngine: false, kvCacheBytes: 2 ** 30, ...speculative },
  });
  try {
    return await work(actor.rollout);
  } finally {
    await actor.close();
  }
}

const ask = (rollout, seeds) =>
  Promise.all(
    seeds.map(
      (seed) =>
        rollout.submit({
          promptIds,
          sampling: { maxNewTokens: LENGTH, temperature: 1, seed: BigInt(seed), stopTokenIds: [] },
        }).result,
    ),
  );

/** Tokens per second of `count` requests at a time, and what a step that checked a draft gave. */
async function rate(rollout, count, seedsOf) {
  const rates = [];
  const before = await rollout.stats();
  for (let round = 0; round < ROUNDS; round++) {
    const started = performance.now();
    await ask(rollout, seedsOf(round));
    rates.push((count * LENGTH * 1000) / (performance.now() - started));
  }
  const after = await rollout.stats();
  const drafts = after.drafts - before.drafts;
  const accepted = after.acceptedTokens - before.acceptedTokens;
  return { rate: median(rates), perStep: drafts === 0 ? 1 : 1 + accepted / drafts };
}

const range = (first, count) => Array.from({ length: count }, (_, i) => first + i);

for (const count of numbers(values.requests)) {
  const plain = await withActor({}, async (rollout) => {
    await ask(rollout, range(0, count));
    return rate(rollout, count, (round) => range(round * count, count));
  });
  for (const numSpeculativeTokens of numbers(values.drafts)) {
    const speculative = { method: 'ngram', numSpeculativeTokens, promptLookupMin: 1 };
    const [right, wrong] = await withActor({ speculative }, async (rollout) => {
      await ask(rollout, range(0, Math.max(count, REMEMBERED)));
      const again = await rate(rollout, count, (round) => range((round * count) % REMEMBERED, count));
      return [again, await rate(rollout, count, (round) => range(10_000 + round * count, count))];
    });
    const ratio = ({ rate: own, perStep }) =>
      `${(own / plain.rate).toFixed(2)} (${perStep.toFixed(2)} tokens per draft's step)`;
    console.log(
      `${count} at a time, ${numSpeculativeTokens} drafted: ${plain.rate.toFixed(0)} tokens/s without; right ${ratio(right)}; wrong ${ratio(wrong)}`,
    );
  }
}
