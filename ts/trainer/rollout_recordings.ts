// Steps whose responses are kept, and taken from what is kept (verl's skip.rollout).
import { join, resolve } from 'node:path';
import { expandHome } from '../base/home';
import type { ResolvedConfig } from '../config/config';
import type { RolloutEngine } from '../rollout/engine';
import { RecordedRollout } from '../rollout/recorded/recorded_rollout';
import { StepRecording } from '../rollout/recorded/step_recording';
import type { Metrics } from './metrics/metrics';

/** Where a step has its responses from. */
export interface StepRollout {
  engine: RolloutEngine;
  /** Of what it was asked so far. */
  metrics(): Metrics;
  close(): void;
}

export class RolloutRecordings {
  private readonly directory: string;
  private readonly steps: ReadonlySet<number>;

  constructor(private readonly config: ResolvedConfig) {
    const { dump_dir, steps } = config.skip.rollout;
    const { project_name, experiment_name } = config.trainer;
    this.directory = join(resolve(expandHome(dump_dir)), project_name, experiment_name);
    this.steps = new Set(steps);
  }

  /** null: the step generates. @throws TroupeError IO as StepRecording.open */
  async of(step: number, engine: RolloutEngine): Promise<StepRollout | null> {
    if (!this.steps.has(step)) return null;
    const { path } = this.config.actor_rollout_ref.model;
    // Runs of other directories may call another model the same.
    const recording = await StepRecording.open(join(this.directory, `${step}.jsonl`), resolve(path));
    const recorded = new RecordedRollout(engine, recording);
    return {
      engine: recorded,
      metrics: () => ({ 'skip/requests': recorded.asked, 'skip/recalled': recorded.recalled }),
      close: () => recording.close(),
    };
  }
}

/** By the engine itself. */
export const unrecorded = (engine: RolloutEngine): StepRollout => ({
  engine,
  metrics: () => ({}),
  close: () => undefined,
});
