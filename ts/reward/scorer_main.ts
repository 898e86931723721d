import { Worker } from 'node:worker_threads';
import { reasonOf } from '../base/text';
import { loadUserModule } from '../base/user_module';
import { TroupeError } from '../errors';
import type { RewardSample } from './contract/types';
import { symbolicallyEqual } from './graders/symbolic_equal';
import { loadRewardFunction } from './load';
import { rewardByDataSource } from './reward';
import type { Comparison, ScorerReply, ScorerRequest, ScorerSetup } from './scorers/scorer_protocol';

// The program of a scorer process (dist/reward/scorer_main.js), started by scorer_pool.ts.

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

function send(reply: ScorerReply): void {
  process.send?.(reply);
}

let work: Work | null = null;

async function answer(request: ScorerRequest): Promise<void> {
  try {
    if (request.type === 'setup') work = prepare(request.setup);
    send({ ok: true, result: request.type === 'setup' ? null : await work?.(request.job) });
  } catch (error) {
    const configuration = error instanceof TroupeError && error.code === 'INVALID_CONFIG';
    send({ ok: false, error: reasonOf(error), configuration });
  }
}

new Worker(WATCH, { eval: true, workerData: process.ppid }).unref();
process.on('disconnect', () => process.exit());
process.on('message', (request: ScorerRequest) => void answer(request));
