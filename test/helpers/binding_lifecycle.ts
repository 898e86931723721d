import { setTimeout as sleep } from 'node:timers/promises';
import { isMainThread, Worker } from 'node:worker_threads';
import type { NativeEngine } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';
import { tinyBatch, tinyEngine, tinyModel } from './tiny_model';

// One way for a process to end per scenario (test/binding/lifecycle.test.ts).

const binding = loadBinding();

function work(engine: NativeEngine): Promise<unknown> {
  return binding.computeLogProb(engine, tinyBatch(), 1, true, false, false, false, 0);
}

/** Keeps the engine thread busy for a while. */
function startLongWork(engine: NativeEngine): void {
  for (let i = 0; i < 2000; i++) work(engine).catch(() => {});
}

/** When it is ready. A thread that ends at once is told of in the same turn as its message: `ended` listens from the start. */
async function inThread(scenario: string): Promise<{ worker: Worker; ended: Promise<unknown> }> {
  const worker = new Worker(__filename, {
    argv: [scenario],
    execArgv: ['-r', require.resolve('./register_ts.js')],
  });
  const ended = new Promise((resolve) => worker.once('exit', resolve));
  await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject));
  return { worker, ended };
}

/** Engines of 8 MB each: all of them together would show. */
async function makeGarbage(): Promise<void> {
  const model = tinyModel({ vocabSize: 2 ** 17 });
  for (let i = 0; i < 100; i++) {
    await binding.createEngine(tinyEngine({ model, optim: null }));
    (globalThis as { gc?: () => void }).gc?.();
    await sleep(0);
  }
}

const scenarios: Record<string, () => Promise<void>> = {
  unused: async () => {},
  unclosed: async () => {
    await work(await binding.createEngine(tinyEngine()));
  },
  pending: async () => {
    const engine = await binding.createEngine(tinyEngine());
    void work(engine).then(() => console.log('pending done'));
  },
  collected: async () => {
    await makeGarbage();
    const { peakRss } = binding.memoryInfo();
    if (peakRss > 700 * 2 ** 20) throw new Error(`peak memory of ${peakRss} bytes: engines were not freed`);
  },
  thread: async () => {
    const { ended } = await inThread('in-thread');
    await ended;
  },
  terminated: async () => {
    const { worker } = await inThread('in-thread-busy');
    await worker.terminate();
  },
  exit: async () => {
    startLongWork(await binding.createEngine(tinyEngine()));
    await sleep(20);
    console.log('exit done');
    process.exit(5);
  },
};

async function threadMain(): Promise<void> {
  const { parentPort } = await import('node:worker_threads');
  const engine = await binding.createEngine(tinyEngine());
  if (process.argv[2] === 'in-thread-busy') startLongWork(engine);
  else await work(engine);
  parentPort?.postMessage('ready');
}

async function main(): Promise<void> {
  const name = process.argv[2] ?? '';
  await scenarios[name]?.();
  if (name !== 'pending') console.log(`${name} done`);
}

void (isMainThread ? main() : threadMain());
