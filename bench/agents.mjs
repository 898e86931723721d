// Many trajectories at once, with tools that take 0.1 to 20 s and some that fail: node bench/agents.mjs [--native] [--trajectories N] [--scale S]
// Against single turns at the same concurrency that sample as much: as many responses, each as long as all turns of a trajectory. Without --native an engine of fixed speed stands for the model: what is measured is whether
// agents keep it busy. With it, our own engine with a model of random weights.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Actor } from '../dist/actor/actor.js';
import { collectTrajectories } from '../dist/agent/collect.js';
import { defineAgent } from '../dist/agent/define.js';
import { commandLine, oneOf } from '../scripts/command_line.mjs';
import { writeModel } from './make_case.mjs';
import { modelConfig } from './presets.mjs';

const { values } = commandLine({
  options: {
    native: { type: 'boolean', default: false },
    preset: { type: 'string', default: 'cpu-40m' },
    trajectories: { type: 'string', least: 1, default: '512' },
    turns: { type: 'string', least: 1, default: '10' },
    tokens: { type: 'string', least: 1, default: '100' },
    /** Responses of one turn that are measured, and tokens of each; default: what the trajectories sample in all their turns. */
    single: { type: 'string', least: 1 },
    'single-tokens': { type: 'string', least: 1 },
    scale: { type: 'string', default: '1' },
    slots: { type: 'string', least: 1, default: '64' },
    /** Tokens of a prompt. */
    prompt: { type: 'string', least: 1, default: '64' },
    /** single: responses of one turn; instant: trajectories whose tools take no time; tools: as they are. */
    runs: { type: 'string', default: 'single,tools' },
    threads: { type: 'string', least: 1, default: '2' },
    /** fifo: in the order of arrival; behind-first: as runs with our own engine do. */
    order: { type: 'string', default: 'behind-first' },
  },
});
const [COUNT, TURNS, TOKENS, SCALE, SLOTS, PROMPT] = [
  values.trajectories,
  values.turns,
  values.tokens,
  values.scale,
  values.slots,
  values.prompt,
].map(Number);
for (const name of values.runs.split(',')) oneOf(name, ['single', 'instant', 'tools'], '--runs');
const STEP_MS = 20;
const SINGLE_TOKENS = Number(values['single-tokens'] ?? TURNS * TOKENS);

/** `slots` responses at a time, a token each per step, as a continuous batch; the others wait. */
class PacedEngine {
  version = 0;
  maxTokens = 1e6;
  maxConcurrency = SLOTS;
  generated = 0;
  waiting = [];
  running = [];
  timer = setInterval(() => this.step(), STEP_MS);
  submit({ sampling }) {
    let resolve;
    const result = new Promise((done) => {
      resolve = done;
    });
    const request = { left: sampling.maxNewTokens, size: sampling.maxNewTokens, resolve };
    this.waiting.push(request);
    const abort = () => {
      request.left = 0;
    };
    return { result, abort, async *[Symbol.asyncIterator]() {} };
  }
  step() {
    while (this.running.length < SLOTS && this.waiting.length > 0) this.running.push(this.waiting.shift());
    this.running = this.running.filter((request) => {
      request.left--;
      this.generated++;
      if (request.left > 0) return true;
      const n = request.size;
      const versions = [{ version: 0, start: 0, end: n }];
      request.resolve({
        tokens: new Int32Array(n),
        logProbs: new Float32Array(n),
        finishReason: 'length',
        versions,
        cachedTokens: 0,
      });
      return false;
    });
  }
  async close() {
    clearInterval(this.timer);
  }
}

/** Our own engine, which counts what it made. */
async function nativeEngine() {
  const directory = mkdtempSync(join(tmpdir(), 'troupe-agents-'));
  writeModel(directory, values.preset, 1);
  const actor = await Actor.create({
    model: directory,
    optim: null,
    numThreads: Number(values.threads),
    // Room for all trajectories: what an earlier turn has computed is not computed again.
    rollout: { kvCacheBytes: 3 * 2 ** 30 },
  });
  rmSync(directory, { recursive: true });
  const { rollout } = actor;
  const engine = {
    version: 0,
    maxTokens: rollout.maxTokens,
    maxConcurrency: rollout.maxConcurrency,
    generated: 0,
    submit: (request) => {
      const handle = rollout.submit(request);
      const count = ({ tokens }) => {
        engine.generated += tokens.length;
      };
      handle.result.then(count, () => undefined);
      return handle;
    },
    close: () => actor.close(),
  };
  return engine;
}

/** An engine, and how much it had to do: the time without any request, and the mean number of requests that it had. */
class Watched {
  requests = 0;
  idleMs = 0;
  area = 0;
  at = performance.now();
  started = this.at;
  constructor(engine) {
    this.engine = engine;
    this.maxTokens = engine.maxTokens;
    this.maxConcurrency = engine.maxConcurrency;
  }
  get version() {
    return this.engine.version;
  }
  submit(request) {
    const handle = this.engine.submit(request);
    const leave = () => this.change(-1);
    this.change(1);
    handle.result.then(leave, leave);
    return handle;
  }
  change(by) {
    const now = performance.now();
    this.area += this.requests * (now - this.at);
    if (this.requests === 0) this.idleMs += now - this.at;
    this.at = now;
    this.requests += by;
  }
  begin() {
    [this.idleMs, this.area] = [0, 0];
    this.at = this.started = performance.now();
  }
  /** Since it began. */
  load() {
    this.change(0);
    return { idleSeconds: this.idleMs / 1000, meanRequests: this.area / (this.at - this.started) };
  }
}

/** From 0.1 to 20 s, most of them short: log-uniform, by the number of the use. */
let uses = 0;
const duration = (scale) => scale * 0.1 * 200 ** ((++uses * 0.618034) % 1);

const tool = (name, call, timeout = null) => ({
  name,
  description: '',
  parameters: { type: 'object' },
  timeout,
  call,
});
const wait = (seconds, signal) =>
  new Promise((done, fail) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      fail(signal.reason);
    });
  });
const toolsOf = (scale) => [
  tool('work', async (_, { signal }) => {
    await wait(duration(scale), signal);
    return 'done';
  }),
  tool('hang', () => new Promise(() => undefined), 2 * scale),
  tool('throw', () => Promise.reject(new Error('broken'))),
  // A program that ends itself in the middle of its work.
  tool(
    'kill',
    () =>
      new Promise((_, fail) => {
        const child = spawn('sh', ['-c', 'kill -9 $$'], { stdio: 'ignore' });
        child.on('exit', (status, signal) => fail(new Error(`ended with ${signal ?? status}`)));
      }),
  ),
  tool('flood', () => 'x'.repeat(100 * 2 ** 20)),
];

const tokenizer = { encode: () => new Int32Array(4), decode: () => '' };
const VOCABULARY = values.native ? modelConfig(values.preset).vocab_size : 1000;
const idsOf = (index, length) =>
  Int32Array.from({ length }, (_, i) => 1 + ((index * 7919 + i * 104729) % (VOCABULARY - 2)));

const agent = (multi) =>
  defineAgent({
    run: async ({ promptIds, extraInfo: { index } }, { model, tools: box }) => {
      let ids = promptIds;
      for (let turn = 0; turn < (multi ? TURNS : 1); turn++) {
        const { tokens } = await model.generate(ids);
        ids = Int32Array.from([...ids, ...tokens, 1, 2, 3]);
        if (!multi) break;
        // One in 64 meets each kind of bad tool, once.
        const bad = turn === 3 ? { 7: 'hang', 21: 'throw', 35: 'flood', 42: 'kill' }[index % 64] : undefined;
        if (bad !== undefined) {
          const { error } = await box.call(bad, {});
          if (bad !== 'flood' && error === null) throw new Error(`${bad} was not noticed`);
        }
        if (turn === Math.min(5, TURNS - 1) && index % 64 === 49) throw new Error('the agent broke');
        if (turn < TURNS - 1) await box.call('work', {});
      }
      return 1;
    },
  });

async function run(watched, tasks, { multi, scale = SCALE }) {
  const { engine } = watched;
  engine.generated = 0;
  watched.begin();
  const started = performance.now();
  const trajectories = await collectTrajectories(agent(multi), tasks, {
    engine: watched,
    tokenizer,
    chat: null,
    sampling: { maxNewTokens: multi ? TOKENS : SINGLE_TOKENS, stopTokenIds: [] },
    tools: toolsOf(scale),
    toolOptions: { timeout: 60, maxResponseLength: 256, truncateSide: 'middle' },
    timeout: 3600,
    retries: 0,
    seed: 1,
    concurrency: COUNT,
    behindFirst: values.order === 'behind-first',
    onError: 'zero',
  });
  const seconds = (performance.now() - started) / 1000;
  const used = trajectories.flatMap(({ toolUses }) => toolUses);
  return {
    seconds,
    tokens: engine.generated,
    tokensPerSecond: engine.generated / seconds,
    ...watched.load(),
    failed: trajectories.filter(({ error }) => error !== null).length,
    errors: Object.fromEntries(
      ['hang', 'throw', 'flood', 'kill', 'work'].map((name) => [
        name,
        used.filter((use) => use.name === name && use.error !== null).length,
      ]),
    ),
    uses: used.length,
    toolSeconds: used.reduce((sum, use) => sum + use.seconds, 0),
  };
}

const tasks = (n) =>
  Array.from({ length: n }, (_, index) => ({
    prompt: '',
    promptIds: idsOf(index, PROMPT),
    dataSource: 'bench',
    groundTruth: null,
    extraInfo: { index },
    sample: 0,
    validation: false,
  }));

const engine = values.native ? await nativeEngine() : new PacedEngine();
const watched = new Watched(engine);
const RUNS = {
  single: () => run(watched, tasks(Number(values.single ?? COUNT)), { multi: false }),
  instant: () => run(watched, tasks(COUNT), { multi: true, scale: 0 }),
  tools: () => run(watched, tasks(COUNT), { multi: true }),
};
const found = {};
for (const name of values.runs.split(',')) found[name] = await RUNS[name]();
await engine.close();
const rate = (name) => found[name]?.tokensPerSecond;
const toSingle = rate('tools') / rate('single');
const engineName = values.native ? values.preset : `${SLOTS} responses of ${1000 / STEP_MS} tokens/s`;
const settings = {
  trajectories: COUNT,
  turns: TURNS,
  tokens: TOKENS,
  prompt: PROMPT,
  scale: SCALE,
  order: values.order,
};
console.log(JSON.stringify({ engine: engineName, ...settings, ...found, toSingle }, null, 2));
process.exit(0);
