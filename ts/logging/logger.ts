/** Metric name -> value. */
export type Metrics = Readonly<Record<string, number>>;

/** Somewhere that metrics go. May throw: the run goes on without it. */
export interface MetricLogger {
  /** For the warning when it fails. */
  readonly name: string;
  log(metrics: Metrics, step: number): void | Promise<void>;
  close(): void | Promise<void>;
}
