// Whether a run that has failed is worth another start.
import { TroupeError } from '../errors';

export interface RestartLimits {
  /** Within `windowMs`. */
  maxRestarts: number;
  windowMs: number;
}

export interface Failure {
  error: unknown;
  /** Steps that the run had done by then. */
  step: number;
  /** Milliseconds. */
  at: number;
}

/** Of something that happens to a machine, a process or a disk. Any other error would come again. */
const PASSING: readonly string[] = ['WORKER_DIED', 'COMM', 'OUT_OF_MEMORY', 'NO_SPACE', 'IO', 'ABORTED'];
/** Failures in a row at which the run has got no further. */
const MOST_WITHOUT_PROGRESS = 3;

export class RestartPolicy {
  readonly #limits: RestartLimits;
  readonly #restarts: number[] = [];
  #furthest = -1;
  #stuck = 0;

  constructor(limits: RestartLimits) {
    this.#limits = limits;
  }

  /** Restarts so far. */
  get restarts(): number {
    return this.#restarts.length;
  }

  /** Failures in a row since the run last got further. */
  get stuck(): number {
    return this.#stuck;
  }

  /** Why there is to be no further start; null: there is. */
  judge({ error, step, at }: Failure): string | null {
    const { maxRestarts, windowMs } = this.#limits;
    if (!(error instanceof TroupeError) || !PASSING.includes(error.code))
      return 'an error that every start would run into';
    this.#stuck = step > this.#furthest ? 1 : this.#stuck + 1;
    this.#furthest = Math.max(this.#furthest, step);
    if (this.#stuck > MOST_WITHOUT_PROGRESS)
      return `${MOST_WITHOUT_PROGRESS} restarts without progress beyond step ${step}`;
    const recent = this.#restarts.filter((before) => at - before < windowMs).length;
    if (recent >= maxRestarts)
      return `${recent} restarts within ${windowMs / 1000} s (trainer.fault_tolerance.max_restarts)`;
    this.#restarts.push(at);
    return null;
  }
}
