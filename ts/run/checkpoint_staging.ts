// Checkpoints in memory, on their way to the disk or in place of it: written at the speed of memory while the ranks wait, and from
// there copied while they go on.
import { createHash, randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { writeFileAtomic } from '../base/atomic_file';
import { makeDirectories } from '../base/make_directories';
import { TroupeError } from '../errors';
import { type Checkpoint, CheckpointStore } from './checkpoint_store';
import type { RunConfig } from './config_changes';
import type { TrainerState } from './trainer_state';

/** In the run directory and in the one in memory: equal where the one belongs to the other. */
const ID = '.staging';
const OWNER_ONLY = 0o700;

export class CheckpointStaging<State extends object> {
  /** Where they are held. */
  readonly directory: string;
  readonly #root: string;
  readonly #store: CheckpointStore<State>;
  #writing: Promise<void> | null = null;
  #failure: Error | null = null;

  /** `root`: of the run; `memory`: a directory on a file system in memory that all hosts of the run share. */
  constructor(
    root: string,
    memory: string,
    /** What it is for. */
    readonly use: { async: boolean; everyStep: boolean },
  ) {
    this.#root = resolve(root);
    const name = createHash('sha256').update(this.#root).digest('hex').slice(0, 16);
    this.directory = join(resolve(memory), `troupe-${process.getuid?.() ?? 0}-${name}`);
    this.#store = new CheckpointStore<State>(this.directory, 1);
  }

  /** Whether an earlier process of this run has left something, whole or not. */
  get left(): boolean {
    const id = idOf(this.#root);
    return id !== null && id === idOf(this.directory) && this.#store.holdsRun();
  }

  /** What an earlier process of this run has left; null: nothing, or of another run. @throws TroupeError IO when it is damaged */
  latest(): Checkpoint<State> | null {
    return this.left ? this.#store.latest() : null;
  }

  /** Reads all of its files. @throws TroupeError IO naming one that is not as it was written */
  check(checkpoint: Checkpoint<State>): Promise<void> {
    return this.#store.check(checkpoint);
  }

  /** What was left goes. `run`: which of the runs in the directory this is. @throws TroupeError IO where nothing can be written */
  begin(run: number): void {
    try {
      rmSync(this.directory, { recursive: true, force: true });
      makeDirectories(dirname(this.directory));
      mkdirSync(this.directory, { mode: OWNER_ONLY });
      if (statSync(this.directory).uid !== (process.getuid?.() ?? 0)) throw new Error('it is another user’s');
      const id = randomBytes(16).toString('hex');
      for (const directory of [this.directory, this.#root]) writeFileAtomic(join(directory, ID), id);
    } catch (error) {
      throw new TroupeError(
        'IO',
        `cannot hold checkpoints in ${this.directory}: ${(error as Error).message}; name another directory in trainer.checkpoint_staging.directory`,
        { cause: error },
      );
    }
    this.#store.goOnAs(run);
  }

  /** What was left stays until something newer is held. */
  goOn(run: number): void {
    this.#store.goOnAs(run);
  }

  /**
   * Holds `step` in place of what was held before; false: there is no space for it, and what was held before stays.
   * @throws TroupeError as what `write` throws
   */
  async hold(step: number, state: State, write: (directory: string) => Promise<void>): Promise<boolean> {
    try {
      await this.#store.save(step, state, write);
      return true;
    } catch (error) {
      if (error instanceof TroupeError && error.code === 'NO_SPACE') return false;
      throw error;
    }
  }

  /** Begins to copy what is held into `store`; see {@link settled}. */
  publish(step: number, store: CheckpointStore<State>): void {
    this.#writing = store.take(step, join(this.directory, `global_step_${step}`)).then(
      () => undefined,
      (error: Error) => {
        this.#failure = error;
      },
    );
  }

  /** @throws what a copy that has ended has run into */
  throwIfFailed(): void {
    if (this.#failure !== null) throw this.#failure;
  }

  /** Waits for the copy on its way. @throws TroupeError NO_SPACE, IO when it could not be made */
  async settled(): Promise<void> {
    await this.#writing;
    this.#writing = null;
    this.throwIfFailed();
  }

  /** Nothing of it is needed any more. */
  remove(): void {
    rmSync(this.directory, { recursive: true, force: true });
    rmSync(join(this.#root, ID), { force: true });
  }
}

/** Where memory is, unless the configuration says so. */
const MEMORY = '/dev/shm';

/** What a configuration asks for; null: nothing. */
export function stagingOf(config: RunConfig): CheckpointStaging<TrainerState> | null {
  const { default_local_dir: root } = config.trainer;
  // Programs put configurations together from sections, and may leave this one out.
  const asked = config.trainer.checkpoint_staging ?? { async: false, every_step: false, directory: null };
  const use = { async: asked.async || rolesSaveAsync(config), everyStep: asked.every_step };
  if (!use.async && !use.everyStep) return null;
  return new CheckpointStaging(root, asked.directory ?? MEMORY, use);
}

function rolesSaveAsync(config: RunConfig): boolean {
  if (!('actor_rollout_ref' in config)) return false;
  const { actor_rollout_ref: policy, critic } = config;
  return (policy.actor.checkpoint?.async_save || critic?.checkpoint?.async_save) ?? false;
}

function idOf(directory: string): string | null {
  try {
    return readFileSync(join(directory, ID), 'utf8');
  } catch {
    return null;
  }
}
