/** Stable error codes. Those of the native core keep their names; the others are raised in TypeScript. */
export type ErrorCode =
  | 'INVALID_ARGUMENT'
  | 'INVALID_CONFIG'
  | 'INVALID_MODEL'
  | 'INVALID_DATA'
  | 'IO'
  | 'IN_USE'
  | 'NO_SPACE'
  | 'OUT_OF_MEMORY'
  | 'NON_FINITE'
  | 'CLOSED'
  | 'ABORTED'
  | 'COMM'
  | 'WORKER_DIED'
  | 'NATIVE_UNAVAILABLE'
  | 'REWARD_FAILED'
  | 'AGENT_FAILED'
  | 'SANDBOX_FAILED'
  | 'INTERRUPTED'
  | 'GAVE_UP'
  | 'INTERNAL';

/** Every error that Troupe raises on purpose: `message` says what was expected, what came, where, and what to do. */
export class TroupeError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'TroupeError';
    this.code = code;
  }
}

/** A key of the configuration that is unknown, mistyped or contradicts another: exit code 2. */
export class ConfigError extends TroupeError {
  /** Dotted path of the offending key, when there is one. */
  readonly path: string | null;

  constructor(message: string, path: string | null = null) {
    super('INVALID_CONFIG', message);
    this.name = 'ConfigError';
    this.path = path;
  }
}

/** A worker process ended or stopped answering: the whole group has failed. */
export class WorkerDiedError extends TroupeError {
  readonly rank: number;
  /** The rank's pool, where the run has several. */
  readonly pool: string | null;
  /** The rank's host, where the run has several. */
  readonly host: string | null;
  readonly phase: string;
  /** With all that it has written; null: there is none. */
  readonly logFile: string | null;
  readonly exitCode: number | null;
  readonly signal: string | null;

  constructor(
    message: string,
    details: {
      rank: number;
      phase: string;
      exitCode: number | null;
      signal: string | null;
      pool?: string | null;
      host?: string | null;
      logFile?: string | null;
    },
  ) {
    super('WORKER_DIED', message);
    this.name = 'WorkerDiedError';
    this.rank = details.rank;
    this.pool = details.pool ?? null;
    this.host = details.host ?? null;
    this.phase = details.phase;
    this.logFile = details.logFile ?? null;
    this.exitCode = details.exitCode;
    this.signal = details.signal;
  }
}
