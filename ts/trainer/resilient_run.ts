// A run that outlives what fails under it: its workers are started again, and it goes on from the newest good checkpoint.
import { setTimeout as sleep } from 'node:timers/promises';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { faultOf, writeFault } from '../run/fault_log';
import { Goodput } from '../run/goodput';
import { RestartPolicy } from '../run/restart_policy';
import { type FitResult, stoppedBefore } from './fit_loop';
import type { Metrics } from './metrics/metrics';

/** One session of the run: a Trainer or an SftTrainer. */
export interface RunSession {
  fit(): Promise<FitResult>;
  /** Ends `fit` soon. @returns false: there is nothing to save, no step has begun */
  requestStop(reason: string): boolean;
  /** Resolves when nothing of a `fit` that has failed goes on. */
  settled?(): Promise<void>;
  /** Whether it has saved, on the disk or in memory; absent: not known. */
  readonly saved?: boolean;
}

/** What a session is told, and tells. */
export interface SessionPlace {
  /** Goes on from what earlier sessions of the run have saved, whatever the configuration says of a first start. */
  again: boolean;
  /** To be called after each step. */
  onStep(step: number): void;
  /** To be called when there is something to go on from, on the disk or in memory. */
  onSaved(): void;
  /** What is logged of the run with a step that was done `seconds` after the one before it. */
  runMetrics(step: number, seconds: number): Metrics;
}

export interface ResilientRunOptions {
  maxRestarts: number;
  /** In which they are counted. */
  windowMs: number;
  runDirectory: string;
  session(place: SessionPlace): RunSession;
  /** Makes the hosts ready for another start. */
  regroup(): Promise<void>;
  /** The step that the same command would go on from; `saved`: a session of this run has saved. */
  savedStep(saved: boolean): number;
  say(line: string): void;
}

/** What has passed may not be over yet: a link, say. By failures in a row. */
const PAUSES_MS = [0, 500, 2_000];
/** A full disk waits for somebody, or for a file that is being replaced. */
const FULL_DISK_PAUSES_MS = [2_000, 10_000, 30_000];

function pauseAfter(error: unknown, failures: number): number {
  const full = error instanceof TroupeError && error.code === 'NO_SPACE';
  const pauses = full ? FULL_DISK_PAUSES_MS : PAUSES_MS;
  return pauses[Math.min(failures, pauses.length) - 1] as number;
}

export class ResilientRun implements RunSession {
  readonly #options: ResilientRunOptions;
  readonly #policy: RestartPolicy;
  readonly #goodput = new Goodput(performance.now());
  /** null: none is at work. */
  #session: RunSession | null = null;
  #stop: string | null = null;
  /** Ends the waiting between two sessions. */
  #wake: () => void = () => undefined;
  #step = 0;
  /** A session of this run has saved: what is there before that is of another. */
  #saved = false;
  /** When the failure was that no step has followed yet. */
  #failedAt: number | null = null;

  constructor(options: ResilientRunOptions) {
    this.#options = options;
    this.#policy = new RestartPolicy(options);
  }

  requestStop(reason: string): boolean {
    this.#stop ??= reason;
    this.#wake();
    return this.#session?.requestStop(reason) ?? false;
  }

  /**
   * Runs to the end, or until `requestStop`, also between two sessions.
   * @throws TroupeError GAVE_UP, with the failure as its cause, when another start is of no use; the failure itself when no restarts are asked for
   */
  async fit(): Promise<FitResult> {
    const { session, say, runDirectory, maxRestarts } = this.#options;
    for (let start = 0; ; start++) {
      try {
        this.#session = session({
          again: this.#saved,
          onStep: (step) => this.#onStep(step, start),
          onSaved: () => {
            this.#saved = true;
          },
          runMetrics: (step, seconds) => this.#metricsOf(step, seconds),
        });
        if (this.#stop !== null) this.#session.requestStop(this.#stop);
        const result = await this.#session.fit();
        if (start > 0) say(this.#summary());
        return result;
      } catch (error) {
        if (maxRestarts === 0) throw error;
        const at = performance.now();
        this.#failedAt ??= at;
        const why = this.#policy.judge({ error, step: this.#step, at });
        const fault = faultOf(error, start, this.#step);
        // What happens to another run is not told there.
        if (fault.code !== 'IN_USE')
          writeFault(runDirectory, { event: 'fault', ...fault, restart: why === null });
        if (why !== null || this.#stop !== null)
          throw this.#gaveUp(error, why ?? `the run was to stop (${this.#stop})`);
        say(`failed after step ${this.#step}: ${reasonOf(error)}`);
        const failed = this.#session;
        this.#session = null;
        await this.#unlessStopped(() => this.#ready(error, failed));
        if (this.#stop !== null) return this.#stopped(this.#stop);
        say(
          `restart ${this.#policy.restarts} (at most ${maxRestarts} within ${this.#options.windowMs / 1000} s)`,
        );
      }
    }
  }

  /** Share of the time in which steps were made that count. */
  get goodput(): number {
    return this.#goodput.share(performance.now());
  }

  /** Whether a session of it has saved. */
  get saved(): boolean {
    return this.#saved;
  }

  #metricsOf(step: number, seconds: number): Metrics {
    this.#goodput.stepDone(step, 1000 * seconds);
    return {
      'perf/goodput': this.goodput,
      'fault/restarts': this.#policy.restarts,
      'fault/lost_steps': this.#goodput.lostSteps,
    };
  }

  /** Waits until there can be another session, after `failed` has ended with `cause`. */
  async #ready(cause: unknown, failed: RunSession | null): Promise<void> {
    // What still goes on writes into the same directory.
    await failed?.settled?.();
    await sleep(pauseAfter(cause, this.#policy.stuck));
    try {
      await this.#options.regroup();
    } catch (error) {
      throw this.#gaveUp(cause, reasonOf(error));
    }
  }

  /** Waits for `work`, or until the run is to stop: then it goes on by itself, and nobody hears of its end. */
  async #unlessStopped(work: () => Promise<void>): Promise<void> {
    const woken = new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    await Promise.race([work(), woken]);
  }

  #stopped(reason: string): FitResult {
    const { runDirectory, savedStep } = this.#options;
    return stoppedBefore(savedStep(this.#saved), reason, runDirectory);
  }

  #gaveUp(cause: unknown, why: string): TroupeError {
    return new TroupeError('GAVE_UP', `${reasonOf(cause)}\nThe run is not started again: ${why}.`, { cause });
  }

  #onStep(step: number, start: number): void {
    const now = performance.now();
    // Steps that are made a second time make up for what was lost.
    if (this.#failedAt !== null && step > this.#step) {
      writeFault(this.#options.runDirectory, {
        event: 'recovered',
        start,
        step,
        seconds_to_next_step: (now - this.#failedAt) / 1000,
        restarts: this.#policy.restarts,
        goodput: this.goodput,
      });
      this.#failedAt = null;
    }
    this.#step = Math.max(this.#step, step);
  }

  #summary(): string {
    const { restarts } = this.#policy;
    return `${restarts} restart${restarts === 1 ? '' : 's'}; goodput ${(100 * this.goodput).toFixed(1)} %: see faults.jsonl`;
  }
}
