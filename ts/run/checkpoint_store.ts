import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { asTroupeError, syncPath, syncTree, TEMPORARY } from '../base/atomic_dir';
import { makeDirectories } from '../base/make_directories';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';

const LATEST = 'latest_checkpointed_iteration.txt';
const STATE = 'trainer.json';
const STEP_DIRECTORY = /^global_step_(\d+)$/;

/** Replaces a file in one step: a reader sees the old text or the new, also after a crash. */
export function writeFileAtomic(path: string, text: string): void {
  const temporary = join(dirname(path), `${TEMPORARY}${basename(path)}`);
  const fd = openSync(temporary, 'w');
  try {
    writeSync(fd, text);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
  renameSync(temporary, path);
  syncPath(dirname(path));
}

/** A checkpoint on disk. */
export interface Checkpoint<State> {
  step: number;
  /** Absolute path of global_step_{N}. */
  directory: string;
  state: State;
}

/**
 * Checkpoints of one run: `root`/global_step_{N}/ and, written last, latest_checkpointed_iteration.txt. A
 * directory under its final name is complete and on disk; what a killed process leaves has a temporary name.
 */
export class CheckpointStore<State> {
  readonly root: string;
  private readonly keep: number | null;

  /** `keep`: how many checkpoints stay; null: all. */
  constructor(root: string, keep: number | null = null) {
    this.root = resolve(root);
    this.keep = keep;
  }

  /**
   * Writes global_step_{step}: `write` fills the (temporary) directory it is given, `state` becomes trainer.json.
   * On any error the temporary directory is removed and earlier checkpoints are as they were.
   * @throws TroupeError NO_SPACE, IO
   */
  async save(step: number, state: State, write: (directory: string) => Promise<void>): Promise<string> {
    const directory = this.directoryOf(step);
    const temporary = join(this.root, `${TEMPORARY}global_step_${step}`);
    try {
      this.removeLeftovers();
      mkdirSync(temporary);
      await write(temporary);
      writeFileAtomic(join(temporary, STATE), `${JSON.stringify(state, null, 2)}\n`);
      syncTree(temporary);
      this.replace(temporary, directory);
      writeFileAtomic(join(this.root, LATEST), String(step));
    } catch (error) {
      rmSync(temporary, { recursive: true, force: true });
      throw this.saveError(asTroupeError(error, `save ${directory}`), directory);
    }
    this.rotate(step);
    return directory;
  }

  /** Whether a run has saved here. */
  holdsRun(): boolean {
    return existsSync(join(this.root, LATEST));
  }

  /** The newest complete checkpoint; null when there is none. */
  latest(): Checkpoint<State> | null {
    const pointer = join(this.root, LATEST);
    if (!existsSync(pointer)) return null;
    const text = readFileSync(pointer, 'utf8').trim();
    const named = Number(text);
    if (!/^\d+$/.test(text)) {
      throw new TroupeError(
        'IO',
        `[checkpoint] ${pointer}: expected a step number but got ${JSON.stringify(text)}`,
      );
    }
    // The named directory is missing only if a crash hit while it was being overwritten: an older one serves.
    const step = this.steps().findLast((candidate) => candidate <= named);
    return step === undefined ? null : this.read(this.directoryOf(step));
  }

  /**
   * A run starts here from a checkpoint, or (null) from the beginning: whatever an earlier run has saved after that, it is not the newest
   * any more, also when this run ends before it has saved anything.
   */
  beginFrom(checkpoint: Checkpoint<State> | null): void {
    const pointer = join(this.root, LATEST);
    if (!existsSync(pointer)) return;
    if (checkpoint !== null && dirname(checkpoint.directory) === this.root) {
      writeFileAtomic(pointer, String(checkpoint.step));
    } else {
      rmSync(pointer);
      syncPath(this.root);
    }
  }

  /** The checkpoint in a directory named global_step_{N}, anywhere. */
  read(directory: string): Checkpoint<State> {
    const path = resolve(directory);
    const match = STEP_DIRECTORY.exec(basename(path));
    const file = join(path, STATE);
    if (!match || !existsSync(file)) {
      throw new TroupeError(
        'IO',
        `[checkpoint] ${path} is not a checkpoint: expected a directory global_step_{N} with a ${STATE}`,
      );
    }
    try {
      return {
        step: Number(match[1]),
        directory: path,
        state: JSON.parse(readFileSync(file, 'utf8')) as State,
      };
    } catch (error) {
      const reason = reasonOf(error);
      throw new TroupeError('IO', `[checkpoint] ${file} is damaged (${reason}): resume from another step`, {
        cause: error,
      });
    }
  }

  /** Says what a failed save leaves; a dead worker has its own story. */
  private saveError(error: TroupeError, directory: string): TroupeError {
    if (error.code !== 'NO_SPACE' && error.code !== 'IO') return error;
    const newest = this.steps().at(-1);
    const kept =
      newest === undefined ? 'there is no earlier checkpoint' : `global_step_${newest} is as it was`;
    const message = `${error.message}; ${directory} was not saved, ${kept}`;
    return new TroupeError(error.code, message, { cause: error });
  }

  private directoryOf(step: number): string {
    return join(this.root, `global_step_${step}`);
  }

  /**
   * Refuses a root with a global_step_N that has no trainer.json: something else wrote it, and saving step N would replace it.
   * @throws TroupeError IO naming the directory
   */
  checkForeign(): void {
    if (!existsSync(this.root) || !statSync(this.root).isDirectory()) return;
    for (const name of readdirSync(this.root))
      if (STEP_DIRECTORY.test(name)) this.checkOwn(join(this.root, name));
  }

  private checkOwn(directory: string): void {
    if (!existsSync(directory) || existsSync(join(directory, STATE))) return;
    throw new TroupeError(
      'IO',
      `[checkpoint] ${directory} is not a checkpoint of Troupe (it has no ${STATE}), and a save would replace it: ` +
        'move it away, or choose another trainer.default_local_dir',
    );
  }

  /** Steps of the complete checkpoints, ascending. */
  private steps(): number[] {
    return readdirSync(this.root)
      .map((name) => STEP_DIRECTORY.exec(name))
      .flatMap((match) => (match && existsSync(join(this.root, match[0], STATE)) ? [Number(match[1])] : []))
      .sort((a, b) => a - b);
  }

  private replace(temporary: string, directory: string): void {
    this.checkOwn(directory);
    if (existsSync(directory)) this.remove(directory);
    renameSync(temporary, directory);
    syncPath(this.root);
  }

  /** Takes the final name away first, so that a half-deleted directory is never taken for a checkpoint. */
  private remove(directory: string): void {
    const doomed = join(this.root, `${TEMPORARY}removed_${basename(directory)}`);
    rmSync(doomed, { recursive: true, force: true });
    renameSync(directory, doomed);
    rmSync(doomed, { recursive: true, force: true });
  }

  /** Deletes what a killed process left under temporary names. */
  removeLeftovers(): void {
    makeDirectories(this.root);
    for (const name of readdirSync(this.root)) {
      if (name.startsWith(TEMPORARY)) rmSync(join(this.root, name), { recursive: true, force: true });
    }
  }

  private rotate(step: number): void {
    if (this.keep === null) return;
    const mine = this.steps().filter((candidate) => candidate <= step);
    for (const old of mine.slice(0, Math.max(0, mine.length - this.keep))) this.remove(this.directoryOf(old));
  }
}
