import { reasonOf } from '../base/text';
import { LOGGER_BACKENDS } from '../config/schema/logger_names';
import { writtenConfig } from '../config/written_config';
import { ConsoleLogger } from './console_logger';
import { JsonlLogger } from './jsonl_logger';
import type { Generation, MetricLogger, Metrics, RunOutcome } from './logger';
import { MlflowLogger } from './mlflow_logger';
import { PrometheusLogger } from './prometheus_logger';
import type { LoggedRun, LoggingConfig } from './run';
import type { RunLength } from './run_length';
import { TensorboardLogger } from './tensorboard_logger';
import { WandbLogger } from './wandb_logger';

const isTiming = (name: string): boolean =>
  /^(timing_s|timing_per_token_ms|perf|agent_loop|fault|straggler)\/|^rollout\/spec_accept_|^tool\/.*\/seconds\/|\/idle_ratio$/.test(
    name,
  );

/** All loggers of a run as one. */
export class Loggers {
  private readonly warned = new Set<MetricLogger>();
  private closing = false;

  /** `generations`: how many answers of a validation are logged (`trainer.log_val_generations`). */
  constructor(
    private readonly loggers: readonly MetricLogger[],
    private readonly warn: (line: string) => void = warnOnStderr,
    private readonly generations = 0,
    private readonly metricsFile: JsonlLogger | null = null,
  ) {}

  /** Lines of metrics.jsonl for a checkpoint to keep: the last, and those before it that could not be written yet. */
  get tail(): readonly string[] {
    return this.metricsFile?.tail ?? [];
  }

  /** Hands the metrics of a step to every logger. One that fails is named once; it never ends a run. */
  async log(metrics: Metrics, step: number): Promise<void> {
    for (const logger of this.loggers) await this.guarded(logger, () => logger.log(metrics, step));
  }

  /** Hands a few of the answers of a validation, evenly spread over all, to the loggers that show texts. */
  async logGenerations(all: readonly Generation[], step: number): Promise<void> {
    const count = Math.min(this.generations, all.length);
    if (count === 0) return;
    const chosen = Array.from(
      { length: count },
      (_, i) => all[Math.floor((i * all.length) / count)] as Generation,
    );
    for (const logger of this.loggers)
      await this.guarded(logger, () => logger.logGenerations?.(chosen, step));
  }

  /** Side by side: each may need its time to flush. */
  async close(outcome: RunOutcome = 'finished'): Promise<void> {
    this.closing = true;
    // Lines that waited are lost now: that is news.
    for (const logger of this.warned) if (logger instanceof JsonlLogger) this.warned.delete(logger);
    await Promise.all(this.loggers.map((logger) => this.guarded(logger, () => logger.close(outcome))));
  }

  private async guarded(logger: MetricLogger, work: () => void | Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (this.warned.has(logger)) return;
      this.warned.add(logger);
      const missed =
        logger instanceof JsonlLogger && !this.closing
          ? 'its lines wait in memory'
          : 'the run goes on without what it missed';
      this.warn(`warning: [logging] ${logger.name} failed, ${missed}: ${reasonOf(error)}`);
    }
  }
}

type Make = (run: LoggedRun) => MetricLogger;

const BACKENDS: Readonly<Record<(typeof LOGGER_BACKENDS)[number], Make>> = {
  console: (run) => new ConsoleLogger(run.length),
  tensorboard: (run) => new TensorboardLogger(run),
  wandb: (run) => new WandbLogger(run),
  mlflow: (run) => new MlflowLogger(run),
  prometheus: (run) => new PrometheusLogger(run),
};

export interface LoggersOptions {
  /** Null when it is not known how many steps there will be. */
  length?: RunLength | null;
  /** Receives what is worth a line to people, such as where a run can be watched. Default: nobody. */
  say?: (line: string) => void;
  /** Receives warnings. Default: standard error. */
  warn?: (line: string) => void;
  /** Beside those that are configured. */
  others?: readonly MetricLogger[];
  /** Where API keys and addresses come from. Default: the environment of this process. */
  environment?: Readonly<Record<string, string | undefined>>;
}

/**
 * The loggers of a run: always metrics.jsonl (all that a second run repeats bitwise) and timings.jsonl (wall-clock and
 * memory), appended; and those that `trainer.logger` names. Names are checked when the configuration is loaded. A logger
 * that cannot be made is warned of, and the run goes on without it.
 */
export function createLoggers(
  config: LoggingConfig,
  directory: string,
  options: LoggersOptions = {},
): Loggers {
  const warn = options.warn ?? warnOnStderr;
  const run: LoggedRun = {
    config,
    record: writtenConfig(config),
    directory,
    length: options.length ?? null,
    say: options.say ?? (() => {}),
    warn: (line) => warn(`warning: [logging] ${line}`),
    environment: options.environment ?? process.env,
  };
  const metricsFile = new JsonlLogger(directory, 'metrics.jsonl', (name) => !isTiming(name));
  const loggers: MetricLogger[] = [metricsFile, new JsonlLogger(directory, 'timings.jsonl', isTiming)];
  loggers.push(...(options.others ?? []));
  for (const name of LOGGER_BACKENDS.filter((backend) => config.trainer.logger.includes(backend))) {
    try {
      loggers.push(BACKENDS[name](run));
    } catch (error) {
      run.warn(`${name} is off, the run goes on without it: ${reasonOf(error)}`);
    }
  }
  return new Loggers(loggers, warn, config.trainer.log_val_generations ?? 0, metricsFile);
}

export function warnOnStderr(line: string): void {
  process.stderr.write(`${line}\n`);
}
