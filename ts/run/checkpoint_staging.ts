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

/** In the run directory and in the one in memory, equal where the one belongs to the other: a random number, and where the one in memory is. */
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

  /** Of what is held, whole or not. @throws TroupeError IO when that cannot be known */
  get step(): number {
    return this.#store.newestStep;
  }

  /** What an earlier process of this run has {@link left}. @throws TroupeError IO when it is damaged */
  latest(): Checkpoint<State> {
    const checkpoint = this.#store.latest();
    if (checkpoint !== null) return checkpoint;
    throw new TroupeError('IO', `[checkpoint] the state that was held in ${this.directory} is missing`);
  }

  /**
   * What was left here goes. `run`: which of the runs in the directory this is; `elsewhere`: what it goes on from is held in another
   * place, and is to be found there until something is held here. @throws TroupeError IO where nothing can be written
   */
  begin(run: number, elsewhere: boolean): void {
    try {
      this.remove();
      makeDirectories(dirname(this.directory));
      mkdirSync(this.directory, { mode: OWNER_ONLY });
      if (statSync(this.directory).uid !== (process.getuid?.() ?? 0)) throw new Error('it is another user’s');
      const id = `${randomBytes(16).toString('hex')} ${this.directory}`;
      writeFileAtomic(join(this.directory, ID), id);
      if (!elsewhere) writeFileAtomic(join(this.#root, ID), id);
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
    } catch (error) {
      if (error instanceof TroupeError && error.code === 'NO_SPACE') return false;
      throw error;
    }
    const id = idOf(this.directory);
    if (id !== null && id !== idOf(this.#root)) writeFileAtomic(join(this.#root, ID), id);
    return true;
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
    const id = idOf(this.#root);
    // First: what is half removed is not to be taken for damaged.
    if (id !== null && id === idOf(this.directory)) rmSync(join(this.#root, ID), { force: true });
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** Where memory is, unless the configuration says so. */
const MEMORY = '/dev/shm';

/** What a configuration asks for; null: nothing. */
export function stagingOf(config: RunConfig): CheckpointStaging<TrainerState> | null {
  const asked = keysOf(config);
  const use = { async: asked.async || rolesSaveAsync(config), everyStep: asked.every_step };
  if (!use.async && !use.everyStep) return null;
  return new CheckpointStaging(config.trainer.default_local_dir, asked.directory ?? MEMORY, use);
}

/** Where an earlier process of the run may have {@link CheckpointStaging.left} something, whatever the configuration asks for now. */
export function leftInMemory(config: RunConfig): CheckpointStaging<TrainerState> {
  const { default_local_dir: root } = config.trainer;
  const [, directory] = /^\S+ (.+)$/s.exec(idOf(resolve(root)) ?? '') ?? [];
  const memory = directory === undefined ? (keysOf(config).directory ?? MEMORY) : dirname(directory);
  return new CheckpointStaging<TrainerState>(root, memory, { async: false, everyStep: false });
}

// Programs put configurations together from sections, and may leave this one out.
const keysOf = ({ trainer }: RunConfig): RunConfig['trainer']['checkpoint_staging'] =>
  trainer.checkpoint_staging ?? { async: false, every_step: false, directory: null };

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
