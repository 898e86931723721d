// Run directories of any size, as runs write them, for tests and measurements of the page.
// As a program: node test/helpers/synthetic_runs.mjs DIRECTORY [runs] [steps] [samples per step]
import { mkdirSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** 0 <= x < 1, the same for the same seed. */
function noise(seed) {
  let state = (seed * 2654435761) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const NAMES = ['pg_loss', 'kl_loss', 'entropy', 'grad_norm', 'ppo_kl', 'pg_clipfrac', 'lr'];
const round = (x) => Number(x.toPrecision(7));

/** A line of metrics.jsonl of step `i`, with `extra` more metrics than a small run has. */
export function metricsLine(i, steps, random, extra = 30) {
  const score = 1 - Math.exp((-3 * i) / steps) + 0.08 * (random() - 0.5);
  const line = {
    step: i,
    'critic/score/mean': round(score),
    'critic/score/max': 1,
    'critic/score/min': 0,
    'critic/advantages/mean': round(0.1 * (random() - 0.5)),
    'response_length/mean': round(180 + 240 * (i / steps) + 20 * random()),
    'response_length/clip_ratio': round(0.02 * random()),
    'training/rollout_probs_diff_mean': round(0.001 + 0.0005 * random()),
    'training/rollout_probs_diff_max': round(0.02 + 0.03 * random()),
    'training/rollout_actor_probs_pearson_corr': round(0.9995 - 0.0004 * random()),
    'training/global_step': i,
  };
  for (const name of NAMES) line[`actor/${name}`] = round(Math.exp((-2 * i) / steps) * (1 + 0.3 * random()));
  for (let k = 0; k < extra; k++) line[`reward/part_${k}/mean`] = round(random());
  if (i % 50 === 0) line['val-core/math/acc/mean@4'] = round(score * 0.9);
  return JSON.stringify(line);
}

function sampleRows(step, count, random) {
  return Array.from({ length: count }, (_, index) => {
    const [a, b] = [Math.floor(random() * 90) + 10, Math.floor(random() * 90) + 10];
    const right = random() < 0.6;
    const words = Math.floor(20 + random() * 120);
    return JSON.stringify({
      step,
      input: `<|im_start|>system\nYou are careful.<|im_end|>\n<|im_start|>user\nA train leaves with ${a} people, and ${b} more get on. How many are there?<|im_end|>\n<|im_start|>assistant\n`,
      output: `There were ${a} people. ${'Then we think about it once more, step by step. '.repeat(Math.floor(words / 20))}\n\n${a} + ${b} = **${right ? a + b : a + b + 10}**\n\n#### ${right ? a + b : a + b + 10}`,
      gts: String(a + b),
      score: right ? 1 : 0,
      acc: right,
      index,
      data_source: index % 3 === 0 ? 'gsm8k' : 'math',
      prompt_length: 40,
      response_length: words,
    });
  });
}

function tokenRows(step, random) {
  const text = [
    'Let',
    ' us',
    ' add',
    ' 4',
    '2',
    ' and',
    ' 1',
    '7',
    '.',
    '\n',
    '4',
    '2',
    ' +',
    ' 1',
    '7',
    ' =',
    ' ',
    '5',
    '9',
    '.',
    '\n\n',
    '####',
    ' 5',
    '9',
    '<|im_end|>',
  ];
  return [0, 64].map((index) => {
    const tokens = Array.from({ length: 6 }, () => text).flat();
    const old = tokens.map(() => round(Math.log(0.02 + 0.98 * random() ** 0.3)));
    const near = (scale) => old.map((x) => round(Math.min(-1e-5, x + scale * (random() - 0.5))));
    return JSON.stringify({
      step,
      index,
      input: 'What is 42 + 17?',
      score: index === 0 ? 1 : 0,
      data_source: 'math',
      length: tokens.length,
      tokens,
      ids: tokens.map((_, i) => 1000 + i),
      mask: tokens.map((_, i) => (i > 60 && i < 80 ? 0 : 1)),
      rollout_log_probs: near(0.02),
      old_log_probs: old,
      ref_log_probs: near(0.6),
      new_log_probs: near(0.3),
      entropy: old.map((x) => round(-x * (0.5 + random()))),
      advantages: tokens.map(() => (index === 0 ? 1.2076 : -0.71)),
    });
  });
}

function traceLine(step, time, ranks, random) {
  const phases = [
    ['gen', 1.6],
    ['reward', 0.3],
    ['old_log_prob', 0.6],
    ['ref', 0.55],
    ['adv', 0.05],
    ['update_actor', 1.4],
  ];
  let at = 0.02;
  const spans = phases.map(([name, length]) => {
    const seconds = round(length * (0.9 + 0.2 * random()));
    const span = [name, round(at), seconds];
    at += seconds;
    return span;
  });
  const calls = {
    gen: "generate of 'actor'",
    old_log_prob: "computeLogProb of 'actor'",
    ref: "computeLogProb of 'ref'",
    update_actor: "updatePolicy of 'actor'",
  };
  return JSON.stringify({
    step,
    time: time + step * 5,
    phases: [['step', 0, round(at)], ...spans],
    ranks: Array.from({ length: ranks }, (_, rank) => ({
      rank,
      calls: spans
        .filter(([name]) => calls[name])
        .map(([name, start, seconds]) => [
          calls[name],
          start,
          round(seconds * (rank === step % ranks ? 1 : 0.65 + 0.3 * random())),
        ]),
      memory: { peakRss: Math.floor(5.2e9 + 1e8 * rank + 1e6 * step), allocated: 0, maxAllocated: 0 },
    })),
    host: { used: 2e10, total: 6.4e10 },
  });
}

const CONFIG = (name, seed) => ({
  actor_rollout_ref: {
    model: { path: `models/qwen2.5-${seed % 2 ? '0.5' : '1.5'}b` },
    actor: { optim: { lr: seed % 3 ? 1e-6 : 5e-7 } },
    rollout: { n: 8, temperature: 1 },
  },
  algorithm: { adv_estimator: ['grpo', 'gae', 'rloo'][seed % 3] },
  data: { train_batch_size: 64 + 64 * (seed % 2) },
  trainer: { experiment_name: name, total_training_steps: null, seed },
});

const GIB = 2 ** 30;
const PLAN = {
  pools: [
    {
      name: '',
      device: 'cpu',
      worldSize: 4,
      memory: 8 * GIB,
      peak: { role: 'actor', verb: 'update', total: 6.125 * GIB },
      phases: [
        ['generate', 0.1, 0.9],
        ['compute_log_prob', 0.7, 0],
        ['update', 1.9, 0],
      ].map(([verb, activations, kvCache]) => {
        const memory = {
          process: 0.25 * GIB,
          parameters: 1.2 * GIB,
          gradients: 0.6 * GIB,
          optimizer: 1.2 * GIB,
          gathered: 0.3 * GIB,
          activations: activations * GIB,
          head: 0.2 * GIB,
          kvCache: kvCache * GIB,
        };
        return {
          role: 'actor',
          verb,
          instant: verb,
          memory,
          total: Object.values(memory).reduce((a, b) => a + b, 0),
        };
      }),
    },
  ],
};

/** An agent's answer with its turns. */
export const TRAJECTORY = JSON.stringify({
  step: 3,
  input: 'Who wrote the first program, and when was she born?',
  output: 'Ada Lovelace, born on 10 December 1815.',
  gts: '1815',
  score: 1,
  index: 0,
  data_source: 'search',
  response_length: 214,
  turns: [
    { role: 'user', content: 'Who wrote the first program, and when was she born?' },
    {
      role: 'assistant',
      content: 'I look it up.',
      seconds: 0.8,
      versions: [3, 3],
      tool_calls: [{ name: 'search', arguments: { query: 'first computer program author' } }],
    },
    {
      role: 'tool',
      tool: 'search',
      content: 'Ada Lovelace published the first algorithm for the Analytical Engine in 1843.',
      seconds: 0.12,
    },
    { role: 'assistant', content: 'Now her birth.', seconds: 0.5, versions: [3, 4] },
    { role: 'tool', tool: 'search', content: '', seconds: 5, error: 'no answer within 5 s' },
    { role: 'assistant', content: 'Ada Lovelace, born on 10 December 1815.', seconds: 0.9, versions: [4, 4] },
  ],
});

/**
 * Writes a run. `state`: running (as this process), finished, failed. `extra`: more metrics; 0 and `plain` give the smallest lines.
 */
export function writeRun(
  directory,
  {
    steps = 200,
    seed = 1,
    state = 'finished',
    samples = 4,
    sampleEvery = 10,
    ranks = 4,
    extra = 30,
    traceSteps = 40,
  } = {},
) {
  const random = noise(seed);
  for (const name of ['samples', 'tokens']) mkdirSync(join(directory, name), { recursive: true });
  const write = (name, lines) =>
    writeFileSync(join(directory, name), lines.map((line) => `${line}\n`).join(''));
  const time = Date.now() / 1000 - steps * 5 - 60;
  const numbers = Array.from({ length: steps }, (_, i) => i + 1);
  write(
    'metrics.jsonl',
    numbers.map((i) => metricsLine(i, steps, random, extra)),
  );
  write(
    'timings.jsonl',
    numbers.map((i) =>
      JSON.stringify({
        step: i,
        'timing_s/gen': round(1.6 + 0.2 * random()),
        'timing_s/update_actor': 1.4,
        'timing_s/step': round(4.6 + 0.3 * random()),
        'perf/total_num_tokens': 30000,
        'perf/throughput': round(6000 + 300 * random()),
        'perf/max_memory_allocated_gb': 4.9,
        'perf/cpu_memory_used_gb': 18.2,
      }),
    ),
  );
  write('config.json', [JSON.stringify(CONFIG(directory, seed))]);
  write('plan.json', [JSON.stringify(PLAN)]);
  const event = (at, step, kind, message, data) =>
    JSON.stringify({ time: at, step, kind, message, ...(data ? { data } : {}) });
  const pid = state === 'running' ? process.pid : 999999999;
  const events = [
    event(time, 0, 'start', 'begins', {
      pid,
      host: hostname(),
      firstStep: 0,
      totalSteps: Math.max(steps, state === 'running' ? 2 * steps : 0),
      program: 'train',
      version: '0.1.0',
    }),
  ];
  for (let i = 50; i <= steps && events.length < 200; i += 50)
    events.push(
      event(time + i * 5, i, 'checkpoint', `saved step ${i}`, {
        directory: `global_step_${i}`,
        seconds: 2.1,
      }),
    );
  if (steps > 20)
    events.push(
      event(
        time + 100,
        20,
        'warning',
        '2 updates of the actor left out: the loss or the gradient was not finite',
      ),
    );
  if (state === 'failed')
    events.push(
      event(
        time + steps * 5,
        steps,
        'error',
        "[worker] rank 1 was killed by SIGKILL in updatePolicy of 'actor'",
      ),
    );
  if (state !== 'running') events.push(event(time + steps * 5, steps, 'end', state, { outcome: state }));
  const timeOf = (line) => JSON.parse(line).time;
  write(
    'events.jsonl',
    events.toSorted((a, b) => timeOf(a) - timeOf(b)),
  );
  write(
    'trace.jsonl',
    numbers.slice(-traceSteps).map((i) => traceLine(i, time, ranks, random)),
  );
  for (let i = sampleEvery; i <= steps; i += sampleEvery)
    write(`samples/${i}.jsonl`, sampleRows(i, samples, random));
  for (let i = 0; i <= steps; i += sampleEvery)
    write(`samples/validation_${i}.jsonl`, sampleRows(i, 2, noise(7)));
  for (let i = 1; i <= Math.min(steps, 41); i += 5) write(`tokens/${i}.jsonl`, tokenRows(i, random));
}

/** Metrics of one name, a million points and the like: lines of a few bytes. */
export function writeLongMetrics(directory, points, peakAt) {
  mkdirSync(directory, { recursive: true });
  const lines = new Array(points);
  for (let i = 0; i < points; i++)
    lines[i] =
      `{"step":${i + 1},"critic/score/mean":${i + 1 === peakAt ? 9 : (Math.sin(i / 5e4) + (i % 97) / 970).toFixed(5)}}`;
  writeFileSync(join(directory, 'metrics.jsonl'), `${lines.join('\n')}\n`);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [directory, runs = '5', steps = '200', samples = '4'] = process.argv.slice(2);
  const states = ['running', 'finished', 'finished', 'failed', 'interrupted'];
  for (let i = 0; i < Number(runs); i++)
    writeRun(join(directory, `math/grpo-${String(i).padStart(3, '0')}`), {
      steps: Number(steps),
      seed: i + 1,
      state: states[i % 5],
      samples: Number(samples),
      extra: Number(runs) > 50 ? 5 : 30,
      sampleEvery: Math.max(10, Math.floor(Number(steps) / 20)),
    });
}
