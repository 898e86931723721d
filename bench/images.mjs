// node bench/images.mjs [options]: log-probs and an update of prompts with an image each, by Troupe and by transformers in turn, in
// float32 on a CPU. Needs Pillow beside what npm run bench needs of Python.
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { commandLine } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';
import { Python } from './python.mjs';

const { Actor, Batch } = createRequire(import.meta.url)('../dist/index.js');
const HERE = dirname(fileURLToPath(import.meta.url));
const WORK = resolve(HERE, '..', '.troupe');
const PEER = join(HERE, 'peer', 'peer_images.py');

const { values: args } = commandLine({
  options: {
    family: { type: 'string', default: 'qwen2_5_vl' },
    size: { type: 'string', least: 1, default: '448' },
    count: { type: 'string', least: 1, default: '8' },
    response: { type: 'string', least: 1, default: '128' },
    threads: { type: 'string', least: 1, default: '2' },
    rounds: { type: 'string', least: 1, default: '2' },
    repeat: { type: 'string', least: 1, default: '3' },
    warmup: { type: 'string', least: 0, default: '1' },
  },
});
const flags = (...names) => names.flatMap((name) => [`--${name}`, args[name]]);

async function caseDirectory(python) {
  const name = `images-${args.family}-${args.count}x${args.size}+${args.response}`;
  const directory = join(WORK, 'bench', name);
  if (existsSync(directory)) return directory;
  const partial = `${directory}.partial`;
  rmSync(partial, { recursive: true, force: true });
  mkdirSync(partial, { recursive: true });
  await python.jsonLines(PEER, ['make', partial, ...flags('family', 'size', 'count', 'response')]);
  renameSync(partial, directory);
  return directory;
}

/** As the peer's: mean, and the mean weighted by cos(index). */
const checksum = (values) => ({
  mean: values.reduce((sum, value) => sum + value, 0) / values.length,
  weighted: values.reduce((sum, value, i) => sum + value * Math.cos(i), 0) / values.length,
});

async function measure(run) {
  const seconds = [];
  let first = null;
  for (let i = 0; i < Number(args.warmup) + Number(args.repeat); i++) {
    const start = performance.now();
    const out = await run();
    if (i >= Number(args.warmup)) seconds.push((performance.now() - start) / 1000);
    first ??= out;
  }
  return { ...first, seconds: median(seconds), seconds_all: seconds };
}

async function ours(directory) {
  const { size, prompts, responses, advantages } = JSON.parse(
    readFileSync(join(directory, 'case.json'), 'utf8'),
  );
  const bytes = new Uint8Array(readFileSync(join(directory, 'images.bin')));
  const images = prompts.map((_, i) => [
    { height: size, width: size, pixels: bytes.slice(3 * size * size * i, 3 * size * size * (i + 1)) },
  ]);
  const batch = Batch.fromSequences(prompts, responses, { images });
  const actor = await Actor.create({
    model: join(directory, 'model'),
    dtype: 'float32',
    device: 'cpu',
    numThreads: Number(args.threads),
    optim: { lr: 1e-6, weightDecay: 0.01, gradClip: 1 },
  });
  try {
    const { logProbs } = await actor.computeLogProb(batch);
    const mini = batch.with({ oldLogProbs: logProbs, advantages: Float32Array.from(advantages) });
    const loss = { clipRatioLow: 0.2, clipRatioHigh: 0.2, clipRatioC: 3, aggregation: 'token-mean' };
    const operations = {
      compute_log_prob: async () => ({
        checksum: checksum([...(await actor.computeLogProb(batch)).logProbs]),
      }),
      update_policy: async () => ({
        grad_norm: (await actor.updatePolicy(mini, { loss }))['actor/grad_norm'],
      }),
    };
    const lines = [];
    for (const [op, run] of Object.entries(operations)) lines.push({ op, ...(await measure(run)) });
    return lines;
  } finally {
    await actor.close();
  }
}

const python = new Python(join(WORK, 'peers'));
await python.prepare(true);
const directory = await caseDirectory(python);
for (let round = 1; round <= Number(args.rounds); round++)
  for (const [peer, lines] of [
    ['troupe', await ours(directory)],
    [
      'transformers',
      await python.jsonLines(PEER, ['run', directory, ...flags('threads', 'repeat', 'warmup')]),
    ],
  ])
    for (const line of lines) console.log(JSON.stringify({ peer, round, family: args.family, ...line }));
