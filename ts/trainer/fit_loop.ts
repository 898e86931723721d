// The loop that both trainers share: steps, validations, logs and checkpoints in their order, until the end or a request to stop.
import { resolve } from 'node:path';
import type { Loggers } from '../logging/loggers';
import type { Observed } from '../records/run_records';
import type { RunDirectory } from '../run/run_directory';
import { type Metrics, PhaseTimer } from './metrics/metrics';
import type { Position, Session } from './session';
import type { StepProfiler } from './step_profiler';

export interface FitResult {
  /** Steps done since the beginning of the run, earlier sessions included. */
  step: number;
  /** True when `requestStop` ended the run early; a checkpoint of `step` is on disk then (none for step 0). */
  interrupted: boolean;
  stopReason: string | null;
  /** Of the last step of this session. */
  metrics: Metrics;
  /** Of the last validation of this session. */
  validation: Metrics;
  runDirectory: string;
  /** Hugging Face directory of the trained model; null when interrupted or `trainer.val_only`. */
  finalModel: string | null;
}

/** Why what can be given up at once was given up. */
export class StopRequested extends Error {}

/** A wish to end soon; the first reason stays. */
export class StopRequest {
  private first: string | null = null;
  private readonly controller = new AbortController();

  /** Aborted with a {@link StopRequested}. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  get reason(): string | null {
    return this.first;
  }

  make(reason: string): void {
    this.first ??= reason;
    this.controller.abort(new StopRequested(this.first));
  }
}

/** Of a session that was to stop before it had begun, with the step that it would have gone on from. */
export const stoppedBefore = (step: number, stopReason: string, runDirectory: string): FitResult => ({
  step,
  interrupted: true,
  stopReason,
  metrics: {},
  validation: {},
  runDirectory: resolve(runDirectory),
  finalModel: null,
});

export interface StepDone {
  metrics: Metrics;
  epoch: number;
  /** What else the log gets of the step, when all of it has been timed; default: the times of the phases. */
  timings?: (timer: PhaseTimer) => Metrics;
}

/** What is trained, as the loop uses it. */
export interface Training {
  /** Step `step`, from 1; null: it was given up before it had changed anything. */
  step(step: number, timer: PhaseTimer): Promise<StepDone | null>;
  /** After `step` steps; {} where there is nothing to validate with. */
  validate(step: number): Promise<Metrics>;
  /** Where it stands after the last step. */
  position(): Position;
  saveCheckpoint(directory: string): Promise<void>;
  saveModel(directory: string): Promise<void>;
  /** null: nothing but the model is saved at the end. */
  saveAdapter: ((directory: string) => Promise<void>) | null;
  /** What the ranks did since it was last asked; absent: not known. */
  observe?(): Promise<Observed>;
  /** Absent: no step is profiled. */
  profiler?: StepProfiler;
  /** Named in the error when a worker dies. */
  setPhase?(phase: string | null): void;
  /** What is logged of the run as a whole with a step that was done `seconds` after the one before it. */
  runMetrics?(step: number, seconds: number): Metrics;
  /** A step is done and logged. */
  stepDone?(step: number): void;
  /** The state after a step is held, on the disk or in memory. */
  saved?(): void;
}

export interface Schedule {
  totalSteps: number;
  /** Steps between checkpoints, and one after the last; 0 or less: none. */
  saveEvery: number;
  /** The same of validations. */
  validateEvery: number;
  /** Before the first step. */
  validateFirst: boolean;
  /** And nothing else. */
  validateOnly: boolean;
}

export class FitLoop {
  private done: number;
  private saved: number;
  private position: Position;
  private metrics: Metrics = {};
  private validation: Metrics = {};
  /** When the last step was done, or the first began. */
  private since = performance.now();

  constructor(
    private readonly training: Training,
    private readonly session: Session,
    private readonly directory: RunDirectory,
    private readonly loggers: Loggers,
    private readonly schedule: Schedule,
    private readonly stop: StopRequest,
  ) {
    this.done = session.firstStep;
    this.saved = session.savedStep;
    this.position = training.position();
  }

  /** The steps that are left, then the final model; or, after a request to stop, a checkpoint. */
  async run(): Promise<FitResult> {
    try {
      const result = await this.toTheEnd();
      await this.session.settled();
      this.session.leave(false);
      return result;
    } catch (error) {
      // A checkpoint on its way is one to go on from.
      await this.session.settled().then(
        () => this.session.leave(true),
        () => undefined, // it is in memory alone
      );
      throw error;
    }
  }

  private async toTheEnd(): Promise<FitResult> {
    const { totalSteps, validateFirst, validateOnly } = this.schedule;
    if (validateOnly || (validateFirst && this.done === 0 && this.stop.reason === null))
      await this.validateAndLog();
    if (validateOnly) return this.result(null);
    // Of an earlier process, which held it in memory and got no further.
    if (this.saved !== this.done && this.due(this.schedule.saveEvery)) await this.save();
    while (this.done < totalSteps && this.stop.reason === null) if (!(await this.step())) break;
    await this.training.profiler?.finish();
    if (this.stopped) {
      if (this.saved !== this.done) await this.save();
      return this.result(null);
    }
    this.directory.checkThere();
    const finalModel = this.directory.file('final_model');
    await this.training.saveModel(finalModel);
    await this.training.saveAdapter?.(this.directory.file('final_adapter'));
    return this.result(finalModel);
  }

  /** A request that comes when all steps are done stops nothing. */
  private get stopped(): boolean {
    return this.stop.reason !== null && this.done < this.schedule.totalSteps;
  }

  private async step(): Promise<boolean> {
    const { training, schedule, session } = this;
    session.throwIfFailed();
    const step = this.done + 1;
    const timer = new PhaseTimer();
    await training.profiler?.begin(step, timer);
    const done = await training.step(step, timer);
    if (done === null) {
      await training.profiler?.abandon(step);
      return false;
    }
    await training.profiler?.end(step, timer);
    this.done = step;
    this.position = training.position();
    const metrics: Metrics = { ...done.metrics, 'training/global_step': step, 'training/epoch': done.epoch };
    if (this.due(schedule.validateEvery))
      Object.assign(metrics, await timer.time('testing', () => this.validate()));
    const now = performance.now();
    const ofRun = training.runMetrics?.(step, (now - this.since) / 1000);
    this.since = now;
    this.metrics = { ...metrics, ...(done.timings?.(timer) ?? timer.metrics()), ...ofRun };
    this.directory.checkThere();
    // Logged before it is saved: a run killed in between repeats the step, so that no line is lost or doubled.
    await this.loggers.log(this.metrics, step);
    await this.writeTrace(timer);
    training.stepDone?.(step);
    if (this.due(schedule.saveEvery)) await this.save();
    else if (await session.hold(step, this.position, (directory) => training.saveCheckpoint(directory)))
      training.saved?.();
    return true;
  }

  /** Whether what comes every so many steps comes after the last one. */
  private due(every: number): boolean {
    return every > 0 && (this.done === this.schedule.totalSteps || this.done % every === 0);
  }

  private async validate(): Promise<Metrics> {
    const metrics = await this.training.validate(this.done);
    if (Object.keys(metrics).length > 0) this.validation = metrics;
    this.session.records?.events.tryAdd('validation', `validated after step ${this.done}`, {}, this.done);
    return metrics;
  }

  private async validateAndLog(): Promise<void> {
    const metrics = await this.validate();
    if (Object.keys(metrics).length > 0) await this.loggers.log(metrics, this.done);
  }

  private async save(): Promise<void> {
    const { training } = this;
    this.directory.checkThere();
    training.setPhase?.(`saving step ${this.done}`);
    const timer = new PhaseTimer();
    await timer.time('save_checkpoint', () =>
      this.session.save(this.done, this.position, (directory) => training.saveCheckpoint(directory)),
    );
    training.setPhase?.(null);
    training.saved?.();
    this.saved = this.done;
    await this.loggers.log(timer.metrics(), this.done);
    await this.writeTrace(timer);
  }

  private async writeTrace(timer: PhaseTimer): Promise<void> {
    const observed = this.session.tracing ? await this.training.observe?.() : undefined;
    this.session.records?.step(this.done, timer.intervals, observed ?? null);
  }

  private result(finalModel: string | null): FitResult {
    return {
      step: this.done,
      interrupted: this.stopped,
      stopReason: this.stop.reason,
      metrics: this.metrics,
      validation: this.validation,
      runDirectory: this.directory.path,
      finalModel,
    };
  }
}
