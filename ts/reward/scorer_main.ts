import { Worker } from 'node:worker_threads';
import { printable } from '../base/printable';
import { reasonOf } from '../base/text';
import { thrownAt } from '../base/thrown_at';
import { loadUserModule } from '../base/user_module';
import { TroupeError } from '../errors';
import { isBounded } from './contract/bounded';
import { checkSize, isPromise } from './contract/outcome';
import type { RewardSample } from './contract/types';
import { symbolicallyEqual } from './graders/symbolic_equal';
import { loadRewardFunction } from './load';
import { rewardByDataSource } from './reward';
import {
  type Comparison,
  MAX_REASON,
  type ScorerMessage,
  type ScorerRequest,
  type ScorerSetup,
} from './scorers/scorer_protocol';

// The program of a scorer process (dist/reward/scorer_main.js), started by scorers/fork.ts.

/** Ends a process whose parent is gone, also while its main thread is in a loop without end. */
const WATCH = `
const { workerData } = require('node:worker_threads');
setInterval(() => { if (process.ppid !== workerData) process.kill(process.pid, 'SIGKILL'); }, 500);
`;

type Work = (job: unknown) => unknown;

function prepare(setup: ScorerSetup): Work {
  if (setup.kind === 'symbolic') {
    return (job) => symbolicallyEqual((job as Comparison).answer, (job as Comparison).truth);
  }
  const { module, libraries, kwargs } = setup;
  for (const library of libraries) loadUserModule(library, 'actor_rollout_ref.model.external_lib');
  const fn = module === null ? rewardByDataSource : loadRewardFunction(module.path, module.name);
  return (job) => fn(job as RewardSample, kwargs);
}

function send(message: ScorerMessage): void {
  process.send?.(message);
}

let work: Work | null = null;

async function answer(request: ScorerRequest): Promise<void> {
  if (request.type === 'ask') return send({ type: 'here' });
  const { id } = request;
  try {
    if (request.type === 'setup') {
      work = prepare(request.setup);
      send({ type: 'reply', id, ok: true, result: null });
      return;
    }
    send({ type: 'begin', id });
    const given = work?.(request.job);
    if (isPromise(given)) send({ type: 'waiting', id, bounded: isBounded(given) });
    const result = await given;
    checkSize(result);
    send({ type: 'reply', id, ok: true, result });
  } catch (error) {
    const configuration = error instanceof TroupeError && error.code === 'INVALID_CONFIG';
    send({
      type: 'reply',
      id,
      ok: false,
      error: printable(`${reasonOf(error)}${configuration ? '' : thrownAt(error)}`, { max: MAX_REASON }),
      configuration,
    });
  }
}

/** Ends this process; the message must be out by then. */
function stray(error: unknown): void {
  const message: ScorerMessage = { type: 'stray', error: printable(reasonOf(error)) };
  if (!process.send?.(message, () => process.exit(1))) process.exitCode = 1;
}

// A scheduler sends these to every process of a job, and the trainer still wants its rewards then: it decides when this process ends.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGUSR2', 'SIGHUP'] as const) process.on(signal, () => undefined);
new Worker(WATCH, { eval: true, workerData: process.ppid }).unref();
process.on('uncaughtException', stray);
process.on('unhandledRejection', stray);
process.on('disconnect', () => process.exit());
// One after the other, each with what its promises have ready: a call that does not return keeps no answer back.
process.on('message', (request: ScorerRequest) => setImmediate(() => void answer(request)));
