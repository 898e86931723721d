/** Metric name -> value. */
export type Metrics = Readonly<Record<string, number>>;

/** A validation prompt, its answer and what that was worth. */
export interface Generation {
  readonly input: string;
  readonly output: string;
  readonly gts: unknown;
  readonly score: number;
}

/** How a session of a run ended; `interrupted`: on request, with a checkpoint to go on from. */
export type RunOutcome = 'finished' | 'interrupted' | 'failed';

/** Somewhere that metrics go. May throw: the run goes on without it. */
export interface MetricLogger {
  /** For the warning when it fails. */
  readonly name: string;
  log(metrics: Metrics, step: number): void | Promise<void>;
  /** `trainer.log_val_generations` answers of a validation. Absent where texts cannot be shown. */
  logGenerations?(generations: readonly Generation[], step: number): void | Promise<void>;
  close(outcome: RunOutcome): void | Promise<void>;
}
