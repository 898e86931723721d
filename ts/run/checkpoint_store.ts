import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { asTroupeError, publish, syncTree, TEMPORARY } from '../base/atomic_dir';
import { writeFileAtomic } from '../base/atomic_file';
import { copyTree } from '../base/copy_tree';
import { makeDirectories } from '../base/make_directories';
import { printable } from '../base/printable';
import { isRegularFile, readRegularFile } from '../base/regular_file';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { checkFiles, checksum, describeFiles, type Manifest } from './manifest';

const LATEST = 'latest_checkpointed_iteration.txt';
const STATE = 'trainer.json';
const STEP_DIRECTORY = /^global_step_(\d+)$/;
/** In `latest`: a run has begun from the beginning, and saved nothing yet. */
const NONE_YET = 0;

/** A checkpoint on disk. */
export interface Checkpoint<State> {
  step: number;
  /** Absolute path of global_step_{N}. */
  directory: string;
  /** Which of the runs that have begun in its directory it is of, from 1; 0: of one that began before they were counted. */
  run: number;
  /** null: saved before there were checksums. */
  files: Manifest | null;
  state: State;
}

/** What the store adds to the state in trainer.json. */
interface Envelope {
  run?: unknown;
  files?: unknown;
  /** Of all the rest of the file. */
  checksum?: unknown;
}

/**
 * Checkpoints of the runs in one directory: `root`/global_step_{N}/ and, written last, latest_checkpointed_iteration.txt. A
 * directory under its final name is complete and on disk; what a killed process leaves has a temporary name.
 */
export class CheckpointStore<State extends object> {
  readonly root: string;
  private readonly keep: number | null;
  private run = 1;

  /** `keep`: how many checkpoints of a run stay; null: all. */
  constructor(root: string, keep: number | null = null) {
    this.root = resolve(root);
    this.keep = keep;
  }

  /**
   * Writes global_step_{step}: `write` fills the (temporary) directory it is given; `state` becomes trainer.json, with the checksums of all
   * files. On any error the temporary directory is removed and earlier checkpoints are as they were.
   * @throws TroupeError NO_SPACE, IO
   */
  async save(step: number, state: State, write: (directory: string) => Promise<void>): Promise<string> {
    return await this.put(step, async (temporary) => {
      await write(temporary);
      const content = { ...state, run: this.run, files: await describeFiles(temporary) };
      const whole = { ...content, checksum: checksum(JSON.stringify(content)) };
      writeFileAtomic(join(temporary, STATE), `${JSON.stringify(whole, null, 2)}\n`);
      syncTree(temporary);
    });
  }

  /** Copies a checkpoint of another directory, as it is, under this step; the process attends to other things meanwhile. @throws as {@link save} */
  take(step: number, source: string): Promise<string> {
    return this.put(step, (temporary) => copyTree(source, temporary));
  }

  /** What it saves from now on is of this run. */
  goOnAs(run: number): void {
    this.run = run;
  }

  /** Of what is on the disk, whole or not; 0: nothing is. */
  get newestStep(): number {
    const steps = existsSync(this.root) ? this.steps() : [];
    const named = existsSync(this.root) ? this.pointer() : null;
    return steps.filter((step) => named === null || step <= named).at(-1) ?? 0;
  }

  /** Which of the runs in the directory it saves for. */
  get currentRun(): number {
    return this.run;
  }

  /** `fill` writes the temporary directory that it is given, and flushes it. */
  private async put(step: number, fill: (temporary: string) => Promise<void>): Promise<string> {
    const directory = this.directoryOf(step);
    const temporary = join(this.root, `${TEMPORARY}global_step_${step}`);
    try {
      this.removeLeftovers();
      mkdirSync(temporary);
      await fill(temporary);
      this.checkOwn(directory);
      publish(temporary, directory);
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
    return existsSync(join(this.root, LATEST)) || (existsSync(this.root) && this.steps().length > 0);
  }

  /** Whether it is written down which checkpoint is the newest. */
  namesLatest(): boolean {
    return isRegularFile(join(this.root, LATEST));
  }

  /** The newest complete checkpoint of the run that began last; null when there is none. */
  latest(): Checkpoint<State> | null {
    if (!existsSync(this.root)) return null;
    const named = this.pointer();
    const steps = this.steps().filter((step) => named === null || step <= named);
    if (named !== null && steps.at(-1) === named) return this.read(this.directoryOf(named));
    // Missing is the file when only the checkpoints were copied here; the directory that it names, when a crash hit while that was being
    // overwritten. The newest of what is there serves.
    const runs = steps.map((step) => this.runOf(step));
    const at = runs.lastIndexOf(Math.max(...runs));
    return at < 0 ? null : this.read(this.directoryOf(steps[at] as number));
  }

  /**
   * Of the same run as `latest` the newest that `verify` accepts, with what is wrong with the newer ones; null when there is no
   * checkpoint. Those of a run that began earlier are no substitute.
   * @throws TroupeError IO when all of them are damaged: what is wrong with the newest; or when the run has saved some and none is there
   */
  async newestGood<Checked>(
    verify: (checkpoint: Checkpoint<State>) => Promise<Checked>,
  ): Promise<{ checkpoint: Checked; damage: string[] } | null> {
    if (!existsSync(this.root)) return null;
    const named = this.pointer();
    const candidates = this.steps()
      .filter((step) => named === null || step <= named)
      .reverse();
    const run = Math.max(-1, ...candidates.map((step) => this.runOf(step)));
    const damage: TroupeError[] = [];
    if (named !== null && named > 0 && candidates[0] !== named) damage.push(this.gone(named));
    for (const step of candidates) {
      // One that cannot be read is of no run that is known: the newest may be of this one.
      const of = this.runOf(step);
      if (of !== run && of !== -1) continue;
      try {
        const checkpoint = await verify(this.read(this.directoryOf(step)));
        return { checkpoint, damage: damage.map(({ message }) => message) };
      } catch (error) {
        if (!(error instanceof TroupeError) || error.code !== 'IO') throw error;
        damage.push(error);
      }
    }
    if (damage[0] !== undefined) throw damage[0];
    return null;
  }

  private gone(step: number): TroupeError {
    return new TroupeError(
      'IO',
      `[checkpoint] ${this.directoryOf(step)}, by ${LATEST} the newest one, is not there: expected it where it was saved (is a disk not mounted?); ` +
        'trainer.resume_mode=disable begins anew',
    );
  }

  private pointer(): number | null {
    const path = join(this.root, LATEST);
    if (!isRegularFile(path)) return null;
    const text = readRegularFile(path).trim();
    if (/^\d+$/.test(text)) return Number(text);
    const shown = JSON.stringify(text.slice(0, 40));
    throw new TroupeError(
      'IO',
      `[checkpoint] ${path}: expected a step number but got ${shown}: write that of the checkpoint to go on from, or remove the file, and the ` +
        'newest one that is there is taken',
    );
  }

  /**
   * A run starts here from a checkpoint, or (null) from the beginning: whatever an earlier run has saved after that, it is not the newest
   * any more, also when this run ends before it has saved anything. `again`: it goes on with the run of the checkpoint; otherwise it is
   * another run, which neither counts nor removes checkpoints of the earlier ones.
   */
  beginFrom(checkpoint: Checkpoint<State> | null, again = false): void {
    const runs = this.steps().map((step) => this.runOf(step));
    const inside = checkpoint !== null && dirname(checkpoint.directory) === this.root;
    this.run = again && checkpoint !== null ? checkpoint.run : Math.max(0, ...runs) + 1;
    if (runs.length === 0 && !this.namesLatest()) return;
    writeFileAtomic(join(this.root, LATEST), String(inside ? checkpoint.step : NONE_YET));
  }

  /** The checkpoint in a directory named global_step_{N}, anywhere. */
  read(directory: string): Checkpoint<State> {
    const path = resolve(directory);
    const match = STEP_DIRECTORY.exec(basename(path));
    const file = join(path, STATE);
    if (!match || !isRegularFile(file)) {
      throw new TroupeError(
        'IO',
        `[checkpoint] ${path} is not a checkpoint: expected a directory global_step_{N} with a ${STATE}`,
      );
    }
    const { run, files, state } = opened<State>(file);
    return { step: Number(match[1]), directory: path, run, files, state };
  }

  /** Reads all of its files, or those of one folder. @throws TroupeError IO naming one that is not as it was saved */
  async check({ directory, files }: Checkpoint<State>, folder: string | null = null): Promise<void> {
    if (files !== null) await checkFiles(directory, files, folder);
  }

  /** Says what a failed save leaves; a dead worker has its own story. */
  private saveError(error: TroupeError, directory: string): TroupeError {
    if (error.code !== 'NO_SPACE' && error.code !== 'IO') return error;
    const newest = existsSync(this.root) ? this.steps().at(-1) : undefined;
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
    if (!existsSync(this.root)) return;
    if (!statSync(this.root).isDirectory())
      throw new TroupeError(
        'IO',
        `trainer.default_local_dir ${this.root} is a file: expected a directory, or a path where nothing is yet`,
      );
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

  /** -1 for one that cannot be read: it is of no run, and stays. */
  private runOf(step: number): number {
    try {
      return opened(join(this.directoryOf(step), STATE)).run;
    } catch {
      return -1;
    }
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
    const mine = this.steps().filter((candidate) => candidate <= step && this.runOf(candidate) === this.run);
    for (const old of mine.slice(0, Math.max(0, mine.length - this.keep))) this.remove(this.directoryOf(old));
  }
}

/** A trainer.json, taken apart. @throws TroupeError IO when it is damaged */
function opened<State>(file: string): Pick<Checkpoint<State>, 'run' | 'files' | 'state'> {
  const damaged = (reason: string, cause?: unknown): TroupeError =>
    new TroupeError(
      'IO',
      `[checkpoint] ${file} is damaged (${printable(reason)}): resume from another step`,
      { cause },
    );
  const text = readRegularFile(file);
  let content: unknown;
  try {
    content = JSON.parse(text);
  } catch (error) {
    throw damaged(reasonOf(error), error);
  }
  if (typeof content !== 'object' || content === null || Array.isArray(content))
    throw damaged('expected a JSON object');
  const { checksum: said, ...rest } = content as Envelope;
  const found = checksum(JSON.stringify(rest));
  if (said === undefined ? rest.run !== undefined || rest.files !== undefined : said !== found)
    throw damaged(`expected the checksum ${String(said)}, but its content gives ${found}`);
  const { run, files, ...state } = rest;
  const counted = typeof run === 'number' && Number.isSafeInteger(run) && run > 0 ? run : 0;
  return { run: counted, files: (files as Manifest | undefined) ?? null, state: state as State };
}
