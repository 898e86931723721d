import { types } from 'node:util';
import { ConsoleLogger } from './console_logger';
import { JsonlLogger } from './jsonl_logger';
import type { MetricLogger, Metrics } from './logger';
import type { RunLength } from './progress_bar';

/** What the loggers need of a configuration. */
export interface LoggingConfig {
  readonly trainer: { readonly logger: readonly string[] };
}

const isTiming = (name: string): boolean => /^(timing_s|timing_per_token_ms|perf)\//.test(name);

/** All loggers of a run as one. */
export class Loggers {
  private readonly warned = new Set<MetricLogger>();

  constructor(
    private readonly loggers: readonly MetricLogger[],
    private readonly warn: (line: string) => void = (line) => process.stderr.write(`${line}\n`),
  ) {}

  /** Hands the metrics of a step to every logger. One that fails is named once; it never ends a run. */
  async log(metrics: Metrics, step: number): Promise<void> {
    for (const logger of this.loggers) await this.guarded(logger, () => logger.log(metrics, step));
  }

  async close(): Promise<void> {
    for (const logger of this.loggers) await this.guarded(logger, () => logger.close());
  }

  private async guarded(logger: MetricLogger, work: () => void | Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (this.warned.has(logger)) return;
      this.warned.add(logger);
      const reason = types.isNativeError(error) ? error.message : String(error);
      this.warn(
        `warning: [logging] ${logger.name} failed, the run goes on without what it missed: ${reason}`,
      );
    }
  }
}

/**
 * The loggers of a run: always metrics.jsonl (all that a second run repeats bitwise) and timings.jsonl (wall-clock and
 * memory), appended; and `trainer.logger`: console. Names are checked when the configuration is loaded.
 */
export function createLoggers(
  config: LoggingConfig,
  directory: string,
  length: RunLength | null = null,
): Loggers {
  const loggers: MetricLogger[] = [
    new JsonlLogger(directory, 'metrics.jsonl', (name) => !isTiming(name)),
    new JsonlLogger(directory, 'timings.jsonl', isTiming),
  ];
  if (config.trainer.logger.includes('console')) loggers.push(new ConsoleLogger(length));
  return new Loggers(loggers);
}
