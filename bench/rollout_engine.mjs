// node bench/rollout_engine.mjs: our engine in one worker on cpu-40m (random weights, float32, 2 threads): what the second turn of a long conversation
// costs (also with linear attention, on cpu-linear), what 100 updates of the weights under load leave behind, and how long a long prompt holds up the worker's loop and another request's abort.
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeModel } from './make_case.mjs';
import { median } from './measure.mjs';
import { scratchDirectory } from './scratch.mjs';

const { Actor } = createRequire(import.meta.url)('../dist/index.js');

const directory = scratchDirectory('rollout');
const model = join(directory, 'model');
const linearModel = join(directory, 'linear');
process.env.TROUPE_LOOP_DELAY = join(directory, 'delay');
process.env.NODE_OPTIONS = `--require ${fileURLToPath(new URL('loop_delay.cjs', import.meta.url))}`;

const tokens = (count, salt) =>
  Array.from({ length: count }, (_, i) => 1 + ((i * 7919 + salt * 104729 + i * i) % 31990));

/** The worker is the only child of this process. */
const workerPid = () =>
  Number(readFileSync(`/proc/${process.pid}/task/${process.pid}/children`, 'utf8').trim());

const resident = (pid) =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;

async function timed(work) {
  const started = performance.now();
  const value = await work();
  return { value, ms: performance.now() - started };
}

async function withActor(rollout, work, directory = model) {
  const actor = await Actor.create({
    model: directory,
    optim: null,
    numThreads: 2,
    device: 'cpu',
    rollout: { freeCacheEngine: false, ...rollout },
  });
  try {
    return await work(actor);
  } finally {
    await actor.close();
  }
}

async function secondTurn(directory, what) {
  const work = async ({ rollout }) => {
    const ask = (promptIds, maxNewTokens, cacheSalt) =>
      timed(
        () =>
          rollout.submit({
            promptIds,
            cacheSalt,
            sampling: { maxNewTokens, temperature: 0, stopTokenIds: [] },
          }).result,
      );
    const times = { second: [], fresh: [], whole: [] };
    let cached;
    let length;
    for (let round = 0; round < 6; round++) {
      const first = await ask(tokens(1900, round), 100);
      const history = [...tokens(1900, round), ...first.value.tokens, ...tokens(100, 50 + round)];
      const second = await ask(history, 1);
      const fresh = await ask(tokens(101, 100 + round), 1);
      const whole = await ask(history, 1, 'apart');
      [cached, length] = [second.value.cachedTokens, history.length];
      if (round === 0) continue;
      for (const [name, { ms }] of Object.entries({ second, fresh, whole })) times[name].push(ms);
    }
    console.log(
      `${what}: second turn of a conversation of 2,000 tokens, with 100 new ones: ${length - cached} positions of ${length} computed, ` +
        `${median(times.second).toFixed(0)} ms to its first token; 101 tokens with nothing before them ${median(times.fresh).toFixed(0)} ms, all ${length} ` +
        `without the cache ${median(times.whole).toFixed(0)} ms (medians of 5)`,
    );
  };
  await withActor({ kvCacheBytes: 2 ** 30 }, work, directory);
}

async function updates() {
  await withActor({ kvCacheBytes: 2 ** 27, maxNumSeqs: 16 }, async ({ rollout }) => {
    const pid = workerPid();
    let over = false;
    let answered = 0;
    const clients = Array.from({ length: 16 }, async (_, i) => {
      for (let k = 0; !over; k++) {
        const promptIds = tokens(40 + ((i * 13 + k * 7) % 60), i + 16 * k);
        const { tokens: made } = await rollout.submit({
          promptIds,
          sampling: { maxNewTokens: 24, stopTokenIds: [] },
        }).result;
        if (made.length !== 24) throw new Error(`a request ended with ${made.length} of 24 tokens`);
        answered++;
      }
    });
    const seen = [];
    for (let version = 1; version <= 120; version++) {
      await rollout.updateWeights({ kind: 'in-place' }, version);
      const { generatedTokens } = await rollout.stats();
      // Under load: something is generated with each.
      while ((await rollout.stats()).generatedTokens === generatedTokens)
        await new Promise((done) => setTimeout(done, 5));
      if (version % 20 === 0) seen.push(resident(pid).toFixed(0));
    }
    over = true;
    await Promise.all(clients);
    const { running, waiting, cachePositionsUsed } = await rollout.stats();
    console.log(
      `120 updates in place with 16 requests in flight: ${answered} requests answered, all whole; resident MiB of the worker after each 20: ` +
        `${seen.join(', ')}; afterwards ${running} running, ${waiting} waiting, ${cachePositionsUsed} positions of the cache held`,
    );
  });
}

async function longPrompt(maxNumBatchedTokens) {
  await withActor({ kvCacheBytes: 2 ** 30, maxNumBatchedTokens }, async ({ rollout }) => {
    await rollout.submit({ promptIds: tokens(64, 1), sampling: { maxNewTokens: 4, stopTokenIds: [] } })
      .result;
    process.kill(workerPid(), 'SIGUSR2');
    const long = timed(
      () =>
        rollout.submit({ promptIds: tokens(8000, 2), sampling: { maxNewTokens: 1, stopTokenIds: [] } })
          .result,
    );
    await new Promise((done) => setTimeout(done, 300));
    const other = rollout.submit({
      promptIds: tokens(64, 3),
      sampling: { maxNewTokens: 1000, stopTokenIds: [] },
    });
    // In the engine's queue by now, behind the long prompt's first step.
    await new Promise((done) => setTimeout(done, 200));
    const abort = await timed(() => {
      other.abort();
      return other.result;
    });
    const { ms } = await long;
    return { ms, abort: abort.ms };
  }).then(({ ms, abort }) => {
    const held = Number(readFileSync(process.env.TROUPE_LOOP_DELAY, 'utf8'));
    console.log(
      `a prompt of 8,000 tokens, ${maxNumBatchedTokens} a step: ${ms.toFixed(0)} ms; the worker's loop was held up for ${held.toFixed(0)} ms at most; ` +
        `another request's abort took ${abort.toFixed(0)} ms`,
    );
  });
}

for (const [to, preset] of [
  [model, 'cpu-40m'],
  [linearModel, 'cpu-linear'],
]) {
  mkdirSync(to);
  writeModel(to, preset, 1);
  await secondTurn(to, preset);
}
await updates();
for (const step of [8192, 512]) await longPrompt(step);
