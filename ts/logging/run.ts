import type { Resolved } from '../config/schema/field';
import type { loggingSection } from '../config/schema/logging_section';
import type { RunLength } from './run_length';

/** What loggers need of a configuration. */
export interface LoggingConfig {
  readonly trainer: {
    readonly logger: readonly string[];
    readonly project_name: string;
    readonly experiment_name: string;
    readonly log_val_generations?: number;
  };
  readonly logging: Resolved<typeof loggingSection>;
}

/** What a logger knows of its run. */
export interface LoggedRun {
  readonly config: LoggingConfig;
  /** What is sent as the configuration of the run: all of it, as it may be written down. */
  readonly record: object;
  /** The run directory. */
  readonly directory: string;
  /** Null when it is not known how many steps there will be: the run then counts as new. */
  readonly length: RunLength | null;
  /** Takes a line for people. */
  readonly say: (line: string) => void;
  readonly warn: (line: string) => void;
  readonly environment: Readonly<Record<string, string | undefined>>;
}

/** An environment variable without surrounding white space; null when it is not set or empty. */
export function variable({ environment }: LoggedRun, name: string): string | null {
  return environment[name]?.trim() || null;
}
