// What a session of a run keeps on disk, whichever program it is: where it goes on from, its files, its checkpoints.
import { existsSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { checkReplaceable } from '../base/atomic_dir';
import { counted, reasonOf } from '../base/text';
import { writtenConfig } from '../config/written_config';
import { TroupeError } from '../errors';
import { packageVersion } from '../install/package_root';
import { createLoggers, type Loggers, warnOnStderr } from '../logging/loggers';
import { RunRecords } from '../records/run_records';
import { type CheckpointStaging, leftInMemory, stagingOf } from '../run/checkpoint_staging';
import { type Checkpoint, CheckpointStore } from '../run/checkpoint_store';
import { type RunConfig, runIdentity } from '../run/config_changes';
import { findCheckpoint, type Resumed } from '../run/resume';
import { RunClaim } from '../run/run_claim';
import { RunDirectory } from '../run/run_directory';
import { type TrainerState, VERSION } from '../run/trainer_state';
import { sharedServer } from '../ui/shared_server';
import { removeUnusedWeights } from './rollout_weights';

/** Where a run stands besides its step: the data loader, and the KL coefficient, the queue of prompts and the tokens where there are such. */
export type Position = Pick<TrainerState, 'loader' | 'klController' | 'queue' | 'tokens'>;

const LOGS = ['metrics.jsonl', 'timings.jsonl', 'trace.jsonl'];
/** Directories with a file for each of some steps. */
const FILES_OF_STEPS = ['samples', 'tokens'];
const CONFIG = 'config.json';
/** What a run writes when it has done all of its steps. */
const FINAL = ['final_model', 'final_adapter'];

/** An engine that a checkpoint has a directory for. */
interface Loadable {
  loadCheckpoint(directory: string): Promise<void>;
}

export class Session {
  /** What is held in memory is all that there is of a step. */
  private onlyHeld = false;
  private loggers: Loggers | null = null;
  private directory: RunDirectory | null = null;
  private written: RunRecords | null = null;

  /** Works in a session from {@link open} to {@link close}. */
  static async during<T>(
    config: RunConfig,
    keep: number | null,
    say: (line: string) => void,
    work: (session: Session) => Promise<T>,
  ): Promise<T> {
    const session = await Session.open(config, keep, say);
    try {
      return await work(session);
    } finally {
      session.close();
    }
  }

  /**
   * Finds and checks the checkpoint to go on from; touches nothing. The directory is its own until {@link close}. `keep`: checkpoints
   * that stay; null: all.
   * @throws TroupeError IN_USE, IO; ConfigError as findCheckpoint
   */
  static async open(config: RunConfig, keep: number | null, say: (line: string) => void): Promise<Session> {
    // What another run replaces while it is read looks damaged.
    const claim = await RunClaim.take(config.trainer.default_local_dir);
    try {
      const store = new CheckpointStore<TrainerState>(config.trainer.default_local_dir, keep);
      store.checkForeign();
      const shown = writtenConfig(config);
      const left = leftInMemory(config);
      const resumed = await findCheckpoint(config, shown, store, left);
      return new Session(claim, config, shown, store, stagingOf(config), left, resumed, say);
    } catch (error) {
      claim.release();
      throw error;
    }
  }

  private constructor(
    private readonly claim: RunClaim,
    private readonly config: RunConfig,
    /** The configuration as it is written down. */
    private readonly shown: Record<string, unknown>,
    private readonly store: CheckpointStore<TrainerState>,
    /** null: checkpoints go to the disk at once. */
    private staging: CheckpointStaging<TrainerState> | null,
    /** What is in memory, of an earlier session, and perhaps in another place than {@link staging}, or since nothing more is held there; null: it is not needed. */
    private left: CheckpointStaging<TrainerState> | null,
    private readonly resumed: Resumed | null,
    readonly say: (line: string) => void,
  ) {}

  /** What it goes on from; null: from the beginning. */
  get checkpoint(): Checkpoint<TrainerState> | null {
    return this.resumed?.checkpoint ?? null;
  }

  /** Steps done before it. */
  get firstStep(): number {
    return this.checkpoint?.step ?? 0;
  }

  /** What the log says first. `verb`: what a run that begins does. */
  opening(verb: string, totalSteps: number): string {
    const steps = counted(totalSteps, 'step');
    const { checkpoint, firstStep } = this;
    if (checkpoint === null) return `${verb} for ${steps}`;
    if (firstStep < totalSteps || this.onlyLooks)
      return `resuming after step ${firstStep} from ${checkpoint.directory}`;
    return (
      `nothing to train: ${checkpoint.directory} has all of the ${steps}; ` +
      'more trainer.total_training_steps or total_epochs go on from there, another trainer.default_local_dir begins anew'
    );
  }

  /** The newest step on the disk. */
  get savedStep(): number {
    return this.resumed?.staged ? this.store.newestStep : this.firstStep;
  }

  /** Loads what the checkpoint, if there is one, has for each engine. */
  async load(engines: Readonly<Record<string, Loadable | null>>): Promise<void> {
    if (this.checkpoint === null) return;
    const { directory } = this.checkpoint;
    for (const [role, engine] of Object.entries(engines)) {
      if (engine === null) continue;
      const path = join(directory, role);
      if (!existsSync(path)) {
        throw new TroupeError(
          'IO',
          `[checkpoint] ${directory} has no ${role}, which this configuration trains: resume with the configuration it was ` +
            'made with, or set trainer.resume_mode=disable',
        );
      }
      await engine.loadCheckpoint(path);
    }
  }

  /** Proves that the run directory can be written, in the end the model, too. @throws TroupeError IO, NO_SPACE */
  prepareDirectory(): RunDirectory {
    this.directory = new RunDirectory(this.config.trainer.default_local_dir);
    if (!this.onlyLooks) for (const name of FINAL) checkReplaceable(this.directory.file(name));
    return this.directory;
  }

  /** When everything that writes has been closed. */
  close(): void {
    this.directory?.close();
    this.claim.release();
  }

  /**
   * Takes the place of what an earlier session has left, and opens the loggers. All that can be wrong with the input must have shown itself
   * before: only now are files of an earlier run touched. `readOnly`: they are not; logs are added to.
   */
  begin(directory: RunDirectory, totalSteps: number, readOnly: boolean): Loggers {
    const { checkpoint, firstStep } = this;
    const notes = [...(this.resumed?.notes ?? [])];
    if (!readOnly) {
      if (this.left?.left && this.config.trainer.resume_mode !== 'auto')
        notes.push(`what an earlier session held in memory is removed: ${this.left.directory}`);
      directory.takeOver();
      this.store.removeLeftovers();
      if (this.resumed?.staged) this.store.goOnAs(this.resumed.checkpoint.run);
      else this.store.beginFrom(checkpoint, this.resumed?.again ?? false);
      notes.push(...this.beginInMemory());
      removeUnusedWeights(this.config, this.say);
      for (const log of LOGS)
        directory.rewindLog(log, firstStep, log === LOGS[0] ? checkpoint?.state.lines : []);
      for (const folder of FILES_OF_STEPS) directory.rewindSteps(folder, firstStep);
    }
    if (!readOnly || !existsSync(directory.file(CONFIG))) directory.writeJson(CONFIG, this.shown);
    const records = new RunRecords({
      directory: directory.path,
      firstStep,
      trace: this.tracing,
      warn: (line) => warnOnStderr(`warning: [logging] ${line}`),
    });
    this.written = records;
    records.events.start(checkpoint ? `goes on after step ${firstStep}` : 'begins', {
      firstStep,
      totalSteps,
      program: 'actor_rollout_ref' in this.config ? 'train' : 'sft',
      version: packageVersion(),
    });
    this.loggers = createLoggers(this.config, directory.path, {
      length: { firstStep, totalSteps },
      say: this.say,
      others: [records.events],
      warn: (line) => {
        records.events.tryAdd('warning', line.replace(/^warning: /, ''));
        warnOnStderr(line);
      },
    });
    for (const note of notes) this.note(`note: ${note}`);
    return this.loggers;
  }

  /** What an earlier session held goes, unless this one goes on from it: then it stays until there is something newer. @returns notes */
  private beginInMemory(): string[] {
    const { left, staging, resumed, firstStep } = this;
    const { currentRun: run } = this.store;
    this.onlyHeld = resumed?.staged ?? false;
    const here = left?.directory === staging?.directory;
    const elsewhere = this.onlyHeld && !here;
    if (this.onlyHeld && here) staging?.goOn(run);
    else staging?.begin(run, elsewhere);
    if (elsewhere) {
      const until = staging === null ? 'saved' : 'held or saved';
      return [`the state after step ${firstStep} stays in ${left?.directory} until a newer one is ${until}`];
    }
    if (here) this.left = null;
    else this.outdateLeft();
    return [];
  }

  /** There is something newer than what an earlier session has left in memory. */
  private outdateLeft(): void {
    this.left?.remove();
    this.left = null;
  }

  /** Sees to it that there is a page to watch the run at, where it is configured. A run goes on without it. */
  async showPage(): Promise<void> {
    const { trainer, logging } = this.config;
    if (!trainer.ui) return;
    const directory = dirname(resolve(trainer.default_local_dir));
    try {
      this.say(`page: ${await sharedServer({ directory, ...logging.ui })}`);
    } catch (error) {
      warnOnStderr(`warning: [ui] there is no page, the run goes on without it: ${reasonOf(error)}`);
    }
  }

  /** A line for people, which stays among the events of the run. */
  note(line: string): void {
    this.say(line);
    this.written?.events.tryAdd('note', line.replace(/^note: /, ''));
  }

  /** What is written down beside the metrics; null before {@link begin}. */
  get records(): RunRecords | null {
    return this.written;
  }

  /** Whether there is a trace to be written. */
  get tracing(): boolean {
    // Programs put configurations together from sections, and may leave this one out.
    return this.config.logging?.trace ?? true;
  }

  /** At what another session has saved. */
  private get onlyLooks(): boolean {
    const { trainer } = this.config;
    return 'val_only' in trainer && trainer.val_only;
  }

  /** What ended it, before loggers are closed. */
  failed(error: unknown): void {
    if (error instanceof TroupeError && error.code === 'IN_USE') this.written?.events.leave();
    this.written?.events.tryAdd('error', reasonOf(error));
  }

  /** Saves `step`: `write` fills a directory with what the engines keep. */
  async save(step: number, position: Position, write: (directory: string) => Promise<void>): Promise<void> {
    const start = performance.now();
    const { staging } = this;
    // One at a time; what became of the one before is said here.
    await staging?.settled();
    const state = this.state(step, position);
    const held = staging?.use.async === true && (await staging.hold(step, state, write));
    if (held) staging.publish(step, this.store);
    else await this.store.save(step, state, write);
    this.onlyHeld = false;
    this.outdateLeft();
    const seconds = (performance.now() - start) / 1000;
    this.written?.events.tryAdd('checkpoint', `saved step ${step}`, {
      directory: `global_step_${step}`,
      seconds,
    });
  }

  /** The state after a step that is not to be saved, where it is held in memory. @returns whether it is */
  async hold(
    step: number,
    position: Position,
    write: (directory: string) => Promise<void>,
  ): Promise<boolean> {
    const { staging } = this;
    if (staging === null || !staging.use.everyStep) return false;
    await staging.settled();
    if (await staging.hold(step, this.state(step, position), write)) {
      this.onlyHeld = true;
      this.outdateLeft();
      return true;
    }
    // Of an earlier step, and newer than what is on the disk: until the next save it is what another start can go on from.
    const stays = this.onlyHeld && this.left === null;
    this.note(
      `warning: there is no space for the state after a step in ${staging.directory}: neither it nor a later one is held there` +
        (stays ? '; that of an earlier step stays until one is saved' : ''),
    );
    if (stays) this.left = staging;
    else staging.remove();
    this.staging = null;
    return false;
  }

  /** Waits until what was saved is on the disk. @throws TroupeError NO_SPACE, IO when it could not be written */
  async settled(): Promise<void> {
    await this.staging?.settled();
  }

  /** @throws what the writing of a checkpoint has run into since the last call */
  throwIfFailed(): void {
    this.staging?.throwIfFailed();
  }

  /** Nothing is to follow what is on the disk, or (`failed`) perhaps something is: what is held in memory goes, or may stay. */
  leave(failed: boolean): void {
    if (this.onlyLooks) return;
    if (failed && (this.onlyHeld || this.staging?.use.everyStep)) return;
    this.staging?.remove();
    this.outdateLeft();
  }

  private state(step: number, position: Position): TrainerState {
    const { seed } = this.config.trainer;
    const lines = [...(this.loggers?.tail ?? [])];
    const identity = runIdentity(this.config);
    return { version: VERSION, step, seed, ...position, identity, lines, config: this.shown };
  }
}
