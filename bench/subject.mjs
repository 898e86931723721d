// Our side of a benchmark, one process per run: node bench/subject.mjs CASE [options]. Prints one JSON line per operation with the
// fields of the peers. bench/run.mjs starts it and adds what the worker says about its native calls.
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { commandLine, refuse } from '../scripts/command_line.mjs';
import { Case } from './case.mjs';
import { median, OPERATIONS, ROLE_OPERATIONS } from './measure.mjs';

const { Actor, Batch, Critic } = createRequire(import.meta.url)('../dist/index.js');

const { values: args, positionals } = commandLine({
  options: {
    threads: { type: 'string', least: 1, default: '2' },
    ops: { type: 'string', default: OPERATIONS.join(',') },
    repeat: { type: 'string', least: 1, default: '3' },
    warmup: { type: 'string', least: 0, default: '1' },
    'micro-tokens': { type: 'string', least: 1, default: '4096' },
    'new-tokens': { type: 'string', least: 1, default: '64' },
    dtype: { type: 'string', default: 'fp32' },
    quantization: { type: 'string' },
    device: { type: 'string', default: 'cpu' },
    'grad-ckpt': { type: 'boolean', default: false },
  },
  words: 1,
});
if (positionals.length === 0) refuse('expected the directory of a case');
const [repeat, warmup] = [Number(args.repeat), Number(args.warmup)];

/** The worker is the only child of this process. */
function workerPid() {
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
      if (Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]) === process.pid) return Number(pid);
    } catch {
      // The process ended while we looked.
    }
  }
  throw new Error('the worker process was not found');
}

/**
 * Starts the worker's peak-RSS counter anew and returns what reads it, in GB, as the peers do. On a GPU: the most that LibTorch's
 * allocator has had since the worker began; it is not started anew.
 */
function peakMeter({ engine }) {
  if (args.device.startsWith('cuda'))
    return async () => Math.max(...(await engine.group.memoryInfo()).map((info) => info.maxAllocated)) / 1e9;
  const pid = workerPid();
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
  return async () => {
    const line = readFileSync(`/proc/${pid}/status`, 'utf8').match(/^VmHWM:\s*(\d+) kB/m);
    return (Number(line[1]) * 1024) / 1e9;
  };
}

/** Mean, and a mean weighted by cos(position) that moves when values land on the wrong token. */
function checksum(values, mask) {
  let [count, sum, weighted] = [0, 0, 0];
  values.forEach((value, i) => {
    if (!mask[i]) return;
    sum += value;
    weighted += value * Math.cos(count);
    count += 1;
  });
  return { mean: sum / count, weighted: weighted / count };
}

function operations(subject, batch, benchCase) {
  const mask = batch.get('responseMask');
  const logProbs = async (entropy) => {
    const out = await subject.computeLogProb(batch, { temperature: 1, entropy });
    const sums = { checksum: checksum(out.logProbs, mask) };
    return entropy ? { ...sums, entropy_checksum: checksum(out.entropy, mask) } : sums;
  };
  return {
    compute_log_prob: () => logProbs(false),
    compute_log_prob_entropy: () => logProbs(true),
    generate: async () => {
      const { n } = benchCase.meta;
      const maxNewTokens = Number(args['new-tokens']);
      const prompts = benchCase.prompts(n);
      const out = await subject.generate(prompts, { n, maxNewTokens, stopTokenIds: [] });
      return { new_tokens: out.numResponseTokens };
    },
    export_weights: async () => {
      const weights = subject.exportWeights();
      for await (const bucket of weights) if (bucket.parts.length === 0) throw new Error('an empty bucket');
      return { bytes: weights.transferred.bytes, native_calls: weights.numBuckets };
    },
    update_policy: async () => {
      const loss = { clipRatioLow: 0.2, clipRatioHigh: 0.2, clipRatioC: 3, aggregation: 'token-mean' };
      const metrics = await subject.updatePolicy(batch, { loss });
      return { loss: metrics['actor/pg_loss'], grad_norm: metrics['actor/grad_norm'] };
    },
    compute_values: async () => ({ checksum: checksum((await subject.computeValues(batch)).values, mask) }),
    update_critic: async () => {
      const metrics = await subject.updateCritic(batch, { clipRangeValue: 0.5 });
      return { loss: metrics['critic/vf_loss'], grad_norm: metrics['critic/grad_norm'] };
    },
  };
}

async function measure(run, subject) {
  const peak = peakMeter(subject);
  const seconds = [];
  let first = null;
  for (let i = 0; i < warmup + repeat; i++) {
    const start = performance.now();
    const out = await run();
    if (i >= warmup) seconds.push((performance.now() - start) / 1000);
    first ??= out;
  }
  return { ...first, seconds: median(seconds), seconds_all: seconds, peak_gb: await peak() };
}

async function group(create, model, names, benchCase) {
  const wanted = names.filter((name) => args.ops.split(',').includes(name));
  if (wanted.length === 0) return;
  const started = performance.now();
  const subject = await create({
    model,
    device: args.device,
    dtype: args.dtype === 'bf16' ? 'bfloat16' : 'float32',
    maxTokensPerMicroBatch: Number(args['micro-tokens']),
    gradientCheckpointing: args['grad-ckpt'],
    ...(args.quantization === undefined ? {} : { rollout: { quantization: args.quantization } }),
    numThreads: Number(args.threads),
    optim: { lr: 1e-6, weightDecay: 0.01, gradClip: 1, betas: [0.9, 0.999], eps: 1e-8 },
  });
  const startup = (performance.now() - started) / 1000;
  try {
    const table = operations(subject, benchCase.batch(Batch), benchCase);
    for (const op of wanted) {
      const result = await measure(table[op], subject);
      const line = {
        peer: 'troupe',
        variant: 'core',
        op,
        device: args.device,
        dtype: args.dtype,
        threads: Number(args.threads),
        malloc: 'keep',
        startup,
        ...result,
        valid_tokens: benchCase.validTokens,
        response_tokens: benchCase.responseTokens,
        padded_tokens: benchCase.paddedTokens,
      };
      console.log(JSON.stringify(line));
    }
  } finally {
    await subject.close();
  }
}

const benchCase = new Case(positionals[0]);
await group(Actor.create, benchCase.modelDirectory, ROLE_OPERATIONS.actor, benchCase);
await group(Critic.create, benchCase.criticDirectory(), ROLE_OPERATIONS.critic, benchCase);
