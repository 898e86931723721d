// node bench/controller.mjs [--steps 4] [--ranks 64] [--prompts 8192] [--samples 16] [--tokens 2048] [--advantages sequence] [--dist DIR]: seconds, bytes sent and memory
// of the trainer process for batches of a hundred thousand sequences, of the first step of a run (in fresh memory) and of later ones, and
// how often prompts are computed. See docs/benchmarks.md.
// The workers are simulated in this process: what they get and give goes through the real frames, what they compute is made up.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { resolve } from 'node:path';
import { Writable } from 'node:stream';
import { setTimeout } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { commandLine } from '../scripts/command_line.mjs';
import { median } from './measure.mjs';
import { Random } from './random.mjs';
import { madeModel } from './sharding_case.mjs';

const { values } = commandLine({
  options: {
    steps: { type: 'string', least: 1, default: '4' },
    ranks: { type: 'string', least: 1, default: '64' },
    prompts: { type: 'string', least: 1, default: '8192' },
    samples: { type: 'string', least: 1, default: '16' },
    tokens: { type: 'string', least: 1, default: '2048' },
    /** token: each its own, as with GAE; sequence: one of all tokens of a response, as with GRPO. */
    advantages: { type: 'string', default: 'token' },
    dist: { type: 'string', default: 'dist' },
  },
});
const [steps, ranks, prompts, samples, tokens] = [
  values.steps,
  values.ranks,
  values.prompts,
  values.samples,
  values.tokens,
].map(Number);
const require = createRequire(import.meta.url);
const { Actor, Critic, balanceOrder, karmarkarKarp } = require(resolve(values.dist, 'index.js'));
const { validationMetrics } = require(resolve(values.dist, 'trainer/metrics/validation_metrics.js'));
const { sampleSeeds, promptsBatch } = require(resolve(values.dist, 'rollout/sampling.js'));
const { EngineHost } = require(resolve(values.dist, 'worker/engine_host.js'));
const { KeptResponses } = require(resolve(values.dist, 'worker/kept_responses.js'));
const { FrameReader, FrameWriter, LONGEST_FRAME } = require(resolve(values.dist, 'worker/frames.js'));

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc');
const GIB = 2 ** 30;
const VOCABULARY = 4096;

/** Calls that carry columns of a batch. */
const COLUMNS = new Set(['takeRollout', 'computeLogProb', 'computeValues', 'updatePolicy', 'updateCritic']);

const inline = (work) => work();

/**
 * What the other end would see of a message: through the frames of both, without a socket and its encryption. `sending` and `reading` do
 * what they are given, the encoding of the message and the reading of each frame; `onBytes` hears how many there are.
 */
function throughFrames(message, { onHead, reading = inline, sending = inline, onBytes }) {
  const reader = new FrameReader(onHead);
  return new Promise((done, fail) => {
    const stream = new Writable({
      highWaterMark: LONGEST_FRAME,
      write(bytes, _, next) {
        onBytes?.(bytes.length);
        const [whole] = reading(() => reader.push(bytes));
        if (whole) done(whole);
        next();
      },
    });
    stream.on('error', fail);
    stream.cork(); // nothing is read before all is encoded
    sending(() => new FrameWriter(stream).send(message));
    stream.uncork();
  });
}

/** Stands in for the log-prob of a token: tells which token a result belongs to. */
const logProbOf = (token, place) => -((token % 97) + (place % 13) / 16);

/** Lengths with a long tail, as those of answers: `longest` at most, half of it on average. */
const responseLength = (random, longest) =>
  Math.min(longest, Math.max(1, Math.round((longest / 2) * Math.exp(0.6 * random.normal() - 0.18))));

function processorSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

/** What the simulated engines sample: a response is a part of these, which begins where its seed says, so that it takes no memory of its own. */
const STARTS = 997;
const SAMPLED = Int32Array.from({ length: tokens + STARTS }, (_, x) => (x * 31) % VOCABULARY);
const SAMPLED_LOG_PROBS = Float32Array.from(SAMPLED, (_, x) => -(x % 89) / 8);
const startOf = (seed) => Number(seed % BigInt(STARTS));
/** Requests that a rank runs at the same time: they end together, and then the next ones run. */
const RUNNING = 256;

/**
 * As many workers as asked for, one after another: each is the real host of engines with an engine that is made up. `seconds` and `processor` are
 * the time that is theirs and not the trainer's.
 */
class SimulatedGroup {
  seconds = 0;
  processor = 0;
  /** To the workers. */
  bytesSent = 0;
  promptsComputed = 0;
  /** On the rank of each: what a rank has computed of a prompt serves its other samples. */
  promptsPrefilled = 0;
  device = 'cpu';
  lastCall = Promise.resolve();

  constructor(worldSize, response) {
    this.worldSize = worldSize;
    this.response = response;
    this.waiting = Array.from({ length: worldSize }, () => []);
    this.hosts = this.waiting.map((waiting) => new EngineHost(this.binding(waiting)));
  }

  /** Of one rank. */
  binding(waiting) {
    return new Proxy(
      {},
      {
        get:
          (_, method) =>
          async (_engine, ...args) =>
            method === 'createEngine' ? {} : this.own(() => this[method]?.(...args, waiting) ?? []),
      },
    );
  }

  buildInfo() {
    return { version: '0', libtorch: '0', cuda: false, deviceCount: 0, threads: 1 };
  }

  async memoryInfo() {
    return [{ peakRss: 0, allocated: 0, maxAllocated: 0 }];
  }

  async connect() {}

  async createEngine(engine, options) {
    for (const host of this.hosts) await host.serve({ type: 'createEngine', requestId: 0, engine, options });
  }

  async closeEngine() {}

  callAll(engine, method, args, land) {
    return Promise.all(
      this.hosts.map((_, rank) => {
        const own = typeof args === 'function' ? args(rank) : args[rank];
        return this.callRank(rank, engine, method, own, land && ((value) => land(rank, value)));
      }),
    );
  }

  /** Worker by worker: what one of them gets or gives takes memory of this process for as long as it is its turn. */
  callRank(rank, engine, method, args, land) {
    const call = this.lastCall.then(() => this.answer(rank, engine, method, args, land));
    const ended = () => undefined; // what it gave is not held
    this.lastCall = call.then(ended, ended);
    return call;
  }

  async answer(rank, engine, method, args, land) {
    const requestId = rank + 1;
    const lands = land ? { lands: true } : {};
    const sent = {
      type: 'callEngine',
      requestId,
      engine,
      method,
      args,
      ...(land ? { answerLands: true } : {}),
    };
    const own = (work) => this.own(work);
    const onBytes = (count) => {
      this.bytesSent += count;
    };
    let request = await throughFrames(sent, { reading: own, onBytes });
    const value = await this.hosts[rank].serve(request);
    request = null;
    // Arrays that a worker was sent are no memory of the trainer's process.
    if (COLUMNS.has(method)) own(collectGarbage);
    const answer = { type: 'result', requestId, value, ...lands };
    return (await throughFrames(answer, { onHead: (head) => land?.(head.value), sending: own })).value;
  }

  /** Work of the simulated workers. */
  own(work) {
    const [started, before] = [performance.now(), processorSeconds()];
    const result = work();
    this.processor += processorSeconds() - before;
    this.seconds += (performance.now() - started) / 1000; // with the cost of asking for the processor's time
    return result;
  }

  openRollout() {
    return { pages: 2 ** 20, pagesHeld: 0, running: 0 };
  }

  rolloutTurn({ submit }, waiting) {
    const sent = submit.map(({ prompt }) => Buffer.from(prompt.buffer, prompt.byteOffset, prompt.byteLength));
    this.promptsPrefilled += new Set(sent.map((bytes) => bytes.toString('latin1'))).size;
    waiting.push(...submit);
    const random = new Random(waiting.length);
    const outputs = waiting.splice(0, RUNNING).map(({ id, seedAndSalt }) => {
      const start = startOf(seedAndSalt[0]);
      const end = start + this.response(random);
      return {
        id,
        tokens: SAMPLED.subarray(start, end),
        logProbs: SAMPLED_LOG_PROBS.subarray(start, end),
        topTokens: new Int32Array(0),
        topLogProbs: new Float32Array(0),
        promptLogProbs: null,
        routedExperts: null,
        images: null,
        version: 0,
        cachedTokens: 0,
        finish: 'length',
        error: null,
        nonFinite: false,
        needsMask: false,
      };
    });
    return { outputs, stats: this.openRollout(), ready: true, idle: waiting.length === 0 };
  }

  computeValues({ tokens: ids, promptLens }) {
    const out = new Float32Array(ids.length - promptLens.reduce((sum, length) => sum + length, 0));
    for (let t = 0; t < out.length; t++) out[t] = t % 61;
    return out;
  }

  updatePolicy({ advantages, tokens: { tokens: ids } }) {
    return [{ pg_loss: ids.length + advantages.length }];
  }

  updateCritic({ returns, tokens: { tokens: ids } }) {
    return [{ vf_loss: ids.length + returns.length }];
  }

  computeLogProb({ tokens: ids, seqOffsets, promptLens }) {
    const seen = new Set();
    const out = new Float32Array(ids.length - promptLens.reduce((sum, length) => sum + length, 0));
    let at = 0;
    for (let i = 0; i < promptLens.length; i++) {
      const start = seqOffsets[i] + promptLens[i];
      seen.add(
        Buffer.from(ids.buffer, ids.byteOffset + 4 * seqOffsets[i], 4 * promptLens[i]).toString('latin1'),
      );
      for (let t = start; t < seqOffsets[i + 1]; t++) out[at++] = logProbOf(ids[t], t - start);
    }
    this.promptsComputed += seen.size;
    return { logProbs: out, entropy: null, sumPiSquared: null };
  }
}

function makePrompts(count, random) {
  return Array.from({ length: count }, (_, i) =>
    Int32Array.from({ length: 100 + random.integer(200) }, (_, t) =>
      t < 4 ? (i >> (4 * t)) % 16 : (t * 7) % VOCABULARY,
    ),
  );
}

/** Seconds of `work` that are the trainer's, and the peak of the process's memory meanwhile. */
async function measured(name, group, work) {
  collectGarbage();
  await setTimeout(500); // V8 frees the memory of arrays on a thread of its own
  writeFileSync('/proc/self/clear_refs', '5');
  group.seconds = 0;
  group.processor = 0;
  group.bytesSent = 0;
  const [started, before] = [performance.now(), processorSeconds()];
  const result = await work();
  const seconds = (performance.now() - started) / 1000 - group.seconds;
  const processor = processorSeconds() - before - group.processor;
  const peak = Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1]) * 1024;
  console.log(
    `| ${name} | ${seconds.toFixed(2)} | ${processor.toFixed(2)} | ${(peak / GIB).toFixed(2)} | ${(group.bytesSent / GIB).toFixed(2)} |`,
  );
  return { result, seconds };
}

function check(batch, logProbs) {
  const ids = batch.get('tokens');
  const { seqOffsets, promptLens, responseOffsets } = batch;
  for (let i = 0; i < batch.size; i++) {
    const from = seqOffsets[i] + promptLens[i];
    for (let t = responseOffsets[i]; t < responseOffsets[i + 1]; t++) {
      const place = t - responseOffsets[i];
      if (logProbs[t] !== Math.fround(logProbOf(ids[from + place], place)))
        throw new Error(`sequence ${i}, place ${place}: the result belongs to another token`);
    }
  }
}

/** Every response of a batch from `generate` is the one that its seed asks for. */
function checkSamples(batch, given) {
  const seeds = sampleSeeds(promptsBatch('check', given, 1), batch.size / given.length, 0);
  const ids = batch.get('tokens');
  const logProbs = batch.get('rolloutLogProbs');
  const { seqOffsets, promptLens, responseOffsets } = batch;
  for (let i = 0; i < batch.size; i++) {
    const shift = startOf(seeds[i]) - responseOffsets[i];
    const tokensAt = seqOffsets[i] + promptLens[i] - responseOffsets[i];
    for (let t = responseOffsets[i]; t < responseOffsets[i + 1]; t++) {
      if (ids[t + tokensAt] !== SAMPLED[t + shift] || logProbs[t] !== SAMPLED_LOG_PROBS[t + shift])
        throw new Error(`sequence ${i}: its response is that of another`);
    }
  }
}

const model = madeModel(4 * tokens);
const actorOver = (group) =>
  Actor.create({ model, group, device: 'cpu', maxTokensPerMicroBatch: 4 * tokens });

console.log(`node ${process.version}, ${cpus().length} x ${cpus()[0]?.model.trim()}`);
console.log(
  `${prompts} prompts x ${samples} responses of ${tokens} tokens with their prompts, ${ranks} ranks`,
);
console.log(
  '| | s | processor, s | peak of the process, GiB | sent, GiB |\n| --- | ---: | ---: | ---: | ---: |',
);
const random = new Random(1);
// Prompts have 200 tokens on average.
const group = new SimulatedGroup(ranks, () => tokens - 200);
// What a worker does with responses before they leave it is its own work.
for (const name of ['submit', 'sorted', 'take']) {
  const work = KeptResponses.prototype[name];
  KeptResponses.prototype[name] = function (...args) {
    return group.own(() => work.apply(this, args));
  };
}
const actor = await actorOver(group);
const critic = await Critic.create({ model, group, device: 'cpu', maxTokensPerMicroBatch: 4 * tokens });
const wholeUpdate = { miniBatchSize: (prompts * samples) / 8 };
const laterSteps = new Map();

/** The verbs of a step, whose memory goes to the next one as that of a trainer's step does. */
async function runStep(step) {
  const verb = async (name, work) => {
    const { result, seconds } = await measured(`${name}, step ${step}`, group, work);
    if (step > 1) laterSteps.set(name, [...(laterSteps.get(name) ?? []), seconds]);
    return result;
  };
  const given = makePrompts(prompts, random);
  const batch = await verb('generate', () => actor.generate(given, { maxNewTokens: tokens, n: samples }));
  checkSamples(batch, given);
  const { logProbs } = await verb('computeLogProb', () => actor.computeLogProb(batch));
  check(batch, logProbs);
  const { values: predicted } = await verb('computeValues', () => critic.computeValues(batch));
  const whole = batch.with(
    {
      oldLogProbs: logProbs,
      advantages: advantagesOf(batch, logProbs),
      values: predicted,
      returns: predicted,
    },
    { adopt: true },
  );
  await verb('updatePolicy, 8 mini-batches', () => actor.updatePolicy(whole, wholeUpdate));
  await verb('updateCritic, 8 mini-batches', () => critic.updateCritic(whole, wholeUpdate));
  whole.recycle?.(); // not in older builds
}

function advantagesOf({ size, responseOffsets }, logProbs) {
  if (values.advantages === 'token') return logProbs;
  const advantages = new Float32Array(logProbs.length);
  for (let i = 0; i < size; i++) advantages.fill(i % 7, responseOffsets[i], responseOffsets[i + 1]);
  return advantages;
}

for (let step = 1; step <= steps; step++) await runStep(step);
for (const [name, seconds] of laterSteps)
  console.log(`| ${name}, median of steps 2 to ${steps} | ${median(seconds).toFixed(2)} | | | |`);
const lengths = Array.from({ length: prompts * samples }, () => 200 + responseLength(random, tokens));
await measured(`balanceOrder of ${lengths.length} over ${ranks}`, group, () => balanceOrder(lengths, ranks));
await measured(`karmarkarKarp of ${lengths.length} over ${ranks}`, group, () =>
  karmarkarKarp(lengths, ranks, false),
);

const held = Array.from({ length: 8 * 10_000 }, () => random.integer(5));
const variables = { reward: held.map((x) => (x < 2 ? 1 : 0)), acc: held.map((x) => x < 2), pred: held };
await measured('validation metrics of 10000 x 8', group, () =>
  validationMetrics(
    held.map(() => 'made'),
    held.map((_, i) => i >> 3),
    variables,
  ),
);

console.log(
  '\n| ranks | prompts generated from, ranks each | prompts computed for log-probs, times each | work of the most loaded rank, of an equal share of what is needed |\n| ---: | ---: | ---: | ---: |',
);
for (const worldSize of [2, 8, 32]) {
  const own = new SimulatedGroup(worldSize, (random) => responseLength(random, tokens));
  const small = await actorOver(own);
  const few = await small.generate(makePrompts(128, random), { maxNewTokens: tokens, n: 8 });
  const loads = [];
  const { computeLogProb } = SimulatedGroup.prototype;
  own.computeLogProb = (dto) => {
    loads.push(workOf(dto));
    return computeLogProb.call(own, dto);
  };
  check(few, (await small.computeLogProb(few)).logProbs);
  const least =
    workOf({ tokens: few.get('tokens'), seqOffsets: few.seqOffsets, promptLens: few.promptLens }) / worldSize;
  console.log(
    `| ${worldSize} | ${(own.promptsPrefilled / 128).toFixed(2)} | ${(own.promptsComputed / 128).toFixed(2)} | ${(Math.max(...loads) / least).toFixed(3)} |`,
  );
}

/** Of a rank, with each prompt once: 24576 L + L², the estimate of docs/distributed.md. */
function workOf({ tokens: ids, seqOffsets, promptLens }) {
  const work = (length) => 24576 * length + length * length;
  const seen = new Set();
  let sum = 0;
  for (let i = 0; i < promptLens.length; i++) {
    const prompt = ids.subarray(seqOffsets[i], seqOffsets[i] + promptLens[i]).join();
    sum += work(seqOffsets[i + 1] - seqOffsets[i]) - (seen.has(prompt) ? work(promptLens[i]) : 0);
    seen.add(prompt);
  }
  return sum;
}
