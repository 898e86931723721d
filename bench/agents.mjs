// Many trajectories at once, with tools that take 0.1 to 20 s and some that fail: node bench/agents.mjs [--trajectories N] [--scale S]
// An engine of fixed speed stands for the model: what is measured is whether agents keep it busy.
import { parseArgs } from 'node:util';
import { collectTrajectories } from '../dist/agent/collect.js';
import { defineAgent } from '../dist/agent/define.js';

const { values } = parseArgs({
  options: {
    trajectories: { type: 'string', default: '512' },
    scale: { type: 'string', default: '1' },
    slots: { type: 'string', default: '64' },
  },
});
const [count, scale, slots] = [values.trajectories, values.scale, values.slots].map(Number);
const TOKENS = 100;
const STEP_MS = 20;
const TURNS = 10;

/** `slots` responses at a time, a token each per step, as a continuous batch; the others wait. */
class PacedEngine {
  version = 0;
  maxTokens = 1e6;
  maxConcurrency = slots;
  generated = 0;
  busySteps = 0;
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
    while (this.running.length < slots && this.waiting.length > 0) this.running.push(this.waiting.shift());
    if (this.running.length > 0) this.busySteps++;
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
}

/** From 0.1 to 20 s, most of them short: log-uniform, by the number of the use. */
let uses = 0;
const duration = () => scale * 0.1 * 200 ** ((++uses * 0.618034) % 1);

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
const tools = [
  tool('work', async (_, { signal }) => {
    await wait(duration(), signal);
    return 'done';
  }),
  tool('hang', () => new Promise(() => undefined), 2 * scale),
  tool('throw', () => Promise.reject(new Error('broken'))),
  tool('flood', () => 'x'.repeat(100 * 2 ** 20)),
];

const tokenizer = { encode: () => new Int32Array(4), decode: () => '' };
const agent = (multi) =>
  defineAgent({
    run: async ({ promptIds, extraInfo: { index } }, { model, tools: box }) => {
      let ids = promptIds;
      for (let turn = 0; turn < (multi ? TURNS : 1); turn++) {
        const { tokens } = await model.generate(ids);
        ids = Int32Array.from([...ids, ...tokens, 1, 2, 3]);
        if (!multi) break;
        // One in 64 meets each kind of bad tool, once.
        const bad = turn === 3 ? { 7: 'hang', 21: 'throw', 35: 'flood' }[index % 64] : undefined;
        if (bad !== undefined) {
          const { error } = await box.call(bad, {});
          if (bad !== 'flood' && error === null) throw new Error(`${bad} was not noticed`);
        }
        if (turn === 5 && index % 64 === 49) throw new Error('the agent broke');
        await box.call('work', {});
      }
      return 1;
    },
  });

async function run(multi, tasks) {
  const engine = new PacedEngine();
  const started = performance.now();
  const trajectories = await collectTrajectories(agent(multi), tasks, {
    engine,
    tokenizer,
    chat: null,
    sampling: { maxNewTokens: TOKENS },
    tools,
    toolOptions: { timeout: 60, maxResponseLength: 256, truncateSide: 'middle' },
    timeout: 3600,
    retries: 0,
    seed: 1,
    concurrency: count,
    onError: 'zero',
  });
  clearInterval(engine.timer);
  const seconds = (performance.now() - started) / 1000;
  const used = trajectories.flatMap(({ toolUses }) => toolUses);
  return {
    seconds,
    tokensPerSecond: engine.generated / seconds,
    failed: trajectories.filter(({ error }) => error !== null).length,
    errors: Object.fromEntries(
      ['hang', 'throw', 'flood', 'work'].map((name) => [
        name,
        used.filter((use) => use.name === name && use.error !== null).length,
      ]),
    ),
    uses: used.length,
  };
}

const tasks = (n) =>
  Array.from({ length: n }, (_, index) => ({
    prompt: '',
    promptIds: new Int32Array([index]),
    dataSource: 'bench',
    groundTruth: null,
    extraInfo: { index },
    sample: 0,
    validation: false,
  }));

// The same number of responses, one a trajectory.
const single = await run(false, tasks(count * TURNS));
const multi = await run(true, tasks(count));
const ratio = multi.tokensPerSecond / single.tokensPerSecond;
console.log(JSON.stringify({ trajectories: count, slots, scale, single, multi, ratio }, null, 2));
process.exit(0);
