// What a session of a run keeps on disk, whichever program it is: where it goes on from, its files, its checkpoints.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { writtenConfig } from '../config/written_config';
import { TroupeError } from '../errors';
import { createLoggers, type Loggers } from '../logging/loggers';
import { type Checkpoint, CheckpointStore } from '../run/checkpoint_store';
import { type RunConfig, runIdentity } from '../run/config_changes';
import { findCheckpoint, type Resumed } from '../run/resume';
import { RunDirectory } from '../run/run_directory';
import { type TrainerState, VERSION } from '../run/trainer_state';

/** Where a run stands besides its step: the data loader, and the KL coefficient where there is one. */
export type Position = Pick<TrainerState, 'loader' | 'klController'>;

const LOGS = ['metrics.jsonl', 'timings.jsonl'];
const CONFIG = 'config.json';

/** An engine that a checkpoint has a directory for. */
interface Loadable {
  loadCheckpoint(directory: string): Promise<void>;
}

export class Session {
  private loggers: Loggers | null = null;

  /**
   * Finds and checks the checkpoint to go on from; touches nothing. `keep`: checkpoints that stay; null: all.
   * @throws TroupeError IO, ConfigError as findCheckpoint
   */
  static async open(config: RunConfig, keep: number | null, say: (line: string) => void): Promise<Session> {
    const store = new CheckpointStore<TrainerState>(config.trainer.default_local_dir, keep);
    store.checkForeign();
    const shown = writtenConfig(config);
    return new Session(config, shown, store, await findCheckpoint(config, shown, store), say);
  }

  private constructor(
    private readonly config: RunConfig,
    /** The configuration as it is written down. */
    private readonly shown: Record<string, unknown>,
    private readonly store: CheckpointStore<TrainerState>,
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

  /** Proves that the run directory can be written. @throws TroupeError IO, NO_SPACE */
  prepareDirectory(): RunDirectory {
    return new RunDirectory(this.config.trainer.default_local_dir);
  }

  /**
   * Takes the place of what an earlier session has left, and opens the loggers. All that can be wrong with the input must have shown itself
   * before: only now are files of an earlier run touched. `readOnly`: they are not; logs are added to.
   */
  begin(directory: RunDirectory, totalSteps: number, readOnly: boolean): Loggers {
    const { checkpoint, firstStep } = this;
    if (!readOnly) {
      this.store.removeLeftovers();
      this.store.beginFrom(checkpoint, this.resumed?.again ?? false);
      for (const log of LOGS)
        directory.rewindLog(log, firstStep, log === LOGS[0] ? checkpoint?.state.lines : []);
    }
    if (!readOnly || !existsSync(directory.file(CONFIG))) directory.writeJson(CONFIG, this.shown);
    this.loggers = createLoggers(this.config, directory.path, {
      length: { firstStep, totalSteps },
      say: this.say,
    });
    for (const note of this.resumed?.notes ?? []) this.say(`note: ${note}`);
    return this.loggers;
  }

  /** Saves `step`: `write` fills a directory with what the engines keep. */
  async save(step: number, position: Position, write: (directory: string) => Promise<void>): Promise<void> {
    const { seed } = this.config.trainer;
    const lines = [...(this.loggers?.tail ?? [])];
    const identity = runIdentity(this.config);
    const state = { version: VERSION, step, seed, ...position, identity, lines, config: this.shown };
    await this.store.save(step, state, write);
  }
}
