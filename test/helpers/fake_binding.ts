import { setTimeout as sleep } from 'node:timers/promises';
import { TroupeError } from '../../ts/errors';
import type { NativeBinding, NativeEngine, NativeEngineOptions } from '../../ts/native/bridge';

interface FakeEngine {
  options: NativeEngineOptions;
  calls: string[];
  abort: AbortController;
}

const of = (engine: NativeEngine): FakeEngine => engine as unknown as FakeEngine;

/**
 * A binding without native code. getTensor takes a command instead of a parameter name: 'sleep 50' (ms), 'hang' (whatever comes), 'spin' (in JavaScript), 'fail
 * CODE message', 'exit 7', 'segfault', 'print text' (on stderr), 'unsendable'; anything else answers with the calls so far, by number.
 */
export function createFakeBinding(): NativeBinding {
  const binding: Partial<NativeBinding> = {
    buildInfo: () => ({
      version: '0.0.0',
      libtorch: '0.0.0',
      cuda: false,
      deviceCount: 0,
      profiler: true,
      threads: 1,
    }),
    memoryInfo: () => ({ peakRss: process.memoryUsage().rss, allocated: 0, maxAllocated: 0 }),
    keepFreedMemory: () => {},
    openRendezvous: async () => 0,
    joinGroup: async () => null,
    createEngine: async (options) =>
      ({ options, calls: [], abort: new AbortController() }) as unknown as NativeEngine,
    parameters: async (engine) => of(engine).calls.map((name) => ({ name, shape: [], matrix: false })),
    computeValues: async (_engine, batch) => {
      await sleep(slowness(batch.tokens.length));
      return Float32Array.from(batch.tokens, (token) => token / 2);
    },
    updateCritic: async (_engine, batch) => [
      { sum: batch.tokens.tokens.reduce((sum, token) => sum + token, 0) },
    ],
    getTensor: async (engine, _kind, command) => {
      of(engine).calls.push(command);
      return await obey(of(engine), command);
    },
    policyLoss: async (inputs) => ({
      loss: inputs.logProbs.length,
      gradLogProbs: inputs.logProbs,
      gradEntropy: null,
      gradTopLogProbs: null,
      metrics: { pg_loss: 0.5 },
    }),
    abort: (engine, reason) => of(engine).abort.abort(reason),
    close: async () => null,
  };
  return binding as NativeBinding;
}

/** Of values, in milliseconds: nothing for small batches, then as the square of their tokens. */
const slowness = (tokens: number): number => (tokens < 10 ? 0 : (30 * tokens ** 2) / 1000);

async function obey(engine: FakeEngine, command: string): Promise<Float32Array> {
  const [verb, ...rest] = command.split(' ');
  switch (verb) {
    case 'sleep':
      await sleep(Number(rest[0]), null, { signal: engine.abort.signal }).catch(() => {
        throw new TroupeError('ABORTED', String(engine.abort.signal.reason));
      });
      break;
    case 'spin':
      process.stderr.write('spinning\n');
      for (;;);
    case 'hang':
      await new Promise(() => {});
      break;
    case 'fail': {
      const error = new Error(rest.slice(1).join(' '));
      throw Object.assign(error, { troupeCode: rest[0] });
    }
    case 'unsendable':
      return (() => {}) as never;
    case 'print':
      process.stderr.write(`${rest.join(' ')}\n`);
      break;
    case 'exit':
      process.exit(Number(rest[0]));
      break;
    case 'segfault':
      process.kill(process.pid, 'SIGSEGV');
      await sleep(10_000);
  }
  return Float32Array.from(engine.calls, (_call, i) => i);
}
