// node bench/advantages.mjs [--responses N] [--tokens N]: milliseconds of every advantage
// estimator. Processor time is what a machine without other load would take. See docs/benchmarks.md.
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { commandLine } from '../scripts/command_line.mjs';

const require = createRequire(import.meta.url);
const { advantageEstimatorNames, computeAdvantages } = require('../dist/algorithms/advantages.js');
const { Batch } = require('../dist/batch/batch.js');

const GROUP = 8;
const REPEATS = 15;
const PROMPT = Int32Array.of(1, 2, 3);

const { values } = commandLine({
  options: {
    responses: { type: 'string', least: 1, default: '8192' },
    tokens: { type: 'string', least: 1, default: '1000' },
  },
});

let state = 1;
const random = () => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};

/** A batch with every column that an estimator reads: outcome rewards on the last tokens, one token in ten masked. */
function makeBatch(responses, tokens) {
  const total = responses * tokens;
  const column = (value) => Float32Array.from({ length: total }, value);
  const prompts = new Array(responses).fill(PROMPT);
  const response = new Int32Array(tokens).fill(7);
  return Batch.fromSequences(prompts, new Array(responses).fill(response), {
    uid: Array.from({ length: responses }, (_, i) => `prompt-${Math.floor(i / GROUP)}`),
    responseMask: Uint8Array.from({ length: total }, () => (random() < 0.1 ? 0 : 1)),
    tokenRewards: column((_, t) => ((t + 1) % tokens === 0 ? Math.round(random()) : 0)),
    values: column(() => random()),
    entropy: column(() => random()),
    oldLogProbs: column(() => -random()),
    sumPiSquared: column(() => random()),
    rewardBaselines: Float32Array.from({ length: responses }, () => Math.round(random())),
    rewardComponents: Array.from({ length: responses }, () => ({ a: random(), b: random() })),
  });
}

const batch = makeBatch(Number(values.responses), Number(values.tokens));
console.log(`node ${process.version}, ${cpus().length} x ${cpus()[0]?.model.trim()}`);
console.log(`${values.responses} responses x ${values.tokens} tokens, groups of ${GROUP}: milliseconds`);
console.log('| estimator | processor, least | processor, median | elapsed, median |\n|---|---:|---:|---:|');
for (const name of advantageEstimatorNames()) {
  const [processor, elapsed] = [[], []];
  for (let i = 0; i < REPEATS; i++) {
    const [start, before] = [performance.now(), process.cpuUsage()];
    computeAdvantages(name, batch);
    const { user, system } = process.cpuUsage(before);
    processor.push((user + system) / 1000);
    elapsed.push(performance.now() - start);
  }
  for (const times of [processor, elapsed]) times.sort((a, b) => a - b);
  const median = Math.floor(REPEATS / 2);
  const row = [processor[0], processor[median], elapsed[median]].map((time) => time.toFixed(1));
  console.log(`| ${name} | ${row.join(' | ')} |`);
}
