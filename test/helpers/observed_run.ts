import { readFileSync } from 'node:fs';
import type { PolicyUpdateOptions } from '../../ts/actor/actor';
import type { Batch } from '../../ts/batch/batch';
import { loadConfig } from '../../ts/config/config';
import type { RewardFunction } from '../../ts/reward/contract/types';
import { createEngines, type Engines } from '../../ts/trainer/engines';
import type { FitResult } from '../../ts/trainer/fit_loop';
import { Trainer } from '../../ts/trainer/trainer';

/** What the policy was updated on in one step, and how. */
export interface ObservedUpdate {
  batch: Batch;
  options: PolicyUpdateOptions;
}

export interface ObservedRun {
  result: FitResult;
  updates: ObservedUpdate[];
  /** Of the critic. */
  criticBatches: Batch[];
  /** Lines of metrics.jsonl. */
  metrics: Record<string, unknown>[];
}

/** Trains in real worker processes and keeps what went into every update. */
export async function observeRun(
  file: string,
  overrides: readonly string[],
  reward: RewardFunction,
): Promise<ObservedRun> {
  const updates: ObservedUpdate[] = [];
  const criticBatches: Batch[] = [];
  const config = loadConfig(file, [...overrides]);
  const trainer = new Trainer(config, {
    reward,
    engines: async (resolved, needs) => {
      const engines = await createEngines(resolved, needs);
      return observe(engines, updates, criticBatches);
    },
  });
  const result = await trainer.fit();
  return { result, updates, criticBatches, metrics: readLines(`${result.runDirectory}/metrics.jsonl`) };
}

/** Those that are whole: the last one may be on its way. */
export function readLines(file: string): Record<string, unknown>[] {
  return readFileSync(file, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

function observe(engines: Engines, updates: ObservedUpdate[], criticBatches: Batch[]): Engines {
  // A step's batch is recycled when the step ends. One copy of it, whoever learns from it.
  const copies = new WeakMap<Batch, Batch>();
  const copyOf = (batch: Batch): Batch => {
    const copy = copies.get(batch) ?? batch.take(Array.from({ length: batch.size }, (_, i) => i));
    copies.set(batch, copy);
    return copy;
  };
  const { actor, critic } = engines;
  const observedActor: Engines['actor'] = Object.create(actor);
  observedActor.updatePolicy = (batch, options = {}) => {
    updates.push({ batch: copyOf(batch), options });
    return actor.updatePolicy(batch, options);
  };
  if (critic === null) return { ...engines, actor: observedActor };
  const observedCritic: NonNullable<Engines['critic']> = Object.create(critic);
  observedCritic.updateCritic = (batch, options) => {
    criticBatches.push(copyOf(batch));
    return critic.updateCritic(batch, options);
  };
  return { ...engines, actor: observedActor, critic: observedCritic };
}
