import { randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  fstatSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { join, resolve } from 'node:path';
import { asTroupeError, TEMPORARY } from '../base/atomic_dir';
import { discard, writeFileAtomic } from '../base/atomic_file';
import { makeDirectories } from '../base/make_directories';
import { isRegularFile, readRegularFile } from '../base/regular_file';
import { toJson } from '../base/text';
import { TroupeError } from '../errors';
import { inUse } from './run_claim';

/** One generation in a dump: verl's keys, and what the reward function returned. */
export interface DumpRow extends Record<string, unknown> {
  step: number;
  input: string;
  output: string;
  gts: unknown;
  score: number;
}

const SAMPLES_PER_STEP = 4;
const STEP_FILE = /^(?:validation_)?(\d+)\.jsonl$/;
/** Which session writes to the directory: the one that began last, on whatever machine. */
const WRITER = '.writer';

/**
 * Creates a directory and proves that it can be written, before any work starts. Returns its absolute path.
 * @throws TroupeError IO, NO_SPACE naming `key` of the configuration and the directory
 */
export function writableDirectory(key: string, path: string): string {
  const directory = resolve(path);
  const probe = join(directory, `${TEMPORARY}probe_${process.pid}`);
  try {
    makeDirectories(directory);
    writeFileSync(probe, 'x');
    rmSync(probe);
  } catch (error) {
    discard(probe);
    throw asTroupeError(error, `write to ${key} ${directory}`);
  }
  return directory;
}

/** The files of a run in `trainer.default_local_dir`, checkpoints apart. It is open until {@link close}. */
export class RunDirectory {
  readonly path: string;
  /** While it is open no other directory can get its number, also when it has been removed. */
  private readonly handle: number;
  private readonly inode: number;
  private closed = false;
  /** What this session has written into {@link WRITER}; null: it takes nobody's place. */
  private writer: string | null = null;

  /** @throws TroupeError as {@link writableDirectory} */
  constructor(path: string) {
    this.path = writableDirectory('trainer.default_local_dir', path);
    this.handle = openSync(this.path, constants.O_RDONLY | constants.O_DIRECTORY);
    this.inode = fstatSync(this.handle).ino;
  }

  /** Once nothing is written to it any more; may be repeated. */
  close(): void {
    if (!this.closed) closeSync(this.handle);
    this.closed = true;
    if (this.writer !== null && this.currentWriter() === this.writer) discard(this.file(WRITER));
  }

  /** From now on it is written to by this session: one on another machine, which no claim sees, ends when it next looks. */
  takeOver(): void {
    this.writer = `process ${process.pid} on ${hostname()}, ${randomBytes(8).toString('hex')}`;
    writeFileAtomic(this.file(WRITER), this.writer);
  }

  /**
   * @throws TroupeError IO when somebody has removed or replaced it: what the run has written so far is gone then; IN_USE when another
   * session has taken over
   */
  checkThere(): void {
    if (statSync(this.path, { throwIfNoEntry: false })?.ino !== this.inode) {
      throw new TroupeError(
        'IO',
        `the run directory ${this.path} was removed or replaced while the run was writing to it, with the metrics and checkpoints in it: ` +
          'start the run again',
      );
    }
    const writer = this.writer === null ? null : this.currentWriter();
    if (writer !== null && writer !== this.writer)
      throw inUse(this.path, `${writer.replace(/,.*/s, '')}, which began later`);
  }

  /** null: nobody says so. */
  private currentWriter(): string | null {
    try {
      return readFileSync(this.file(WRITER), 'utf8');
    } catch {
      return null;
    }
  }

  file(name: string): string {
    return join(this.path, name);
  }

  writeJson(name: string, value: unknown): void {
    writeFileAtomic(this.file(name), `${JSON.stringify(value, null, 2)}\n`);
  }

  /**
   * Drops the lines of a JSONL log that are later than `step`, and a last line cut short by a crash; all of
   * them for step 0. A resumed run then continues the file where its checkpoint stands. `known`: lines that the checkpoint keeps, for steps
   * that the file lacks.
   * @throws TroupeError IO, NO_SPACE naming the file, also when it is none
   */
  rewindLog(name: string, step: number, known: readonly string[] = []): void {
    const path = this.file(name);
    if (!isRegularFile(path)) return;
    const upTo = (lines: readonly string[]): [number, string][] =>
      lines.flatMap((line) => {
        const at = stepOf(line);
        return step > 0 && at !== null && at <= step ? [[at, line]] : [];
      });
    const kept = upTo(readRegularFile(path).split('\n'));
    const there = new Set(kept.map(([at]) => at));
    const lacking = upTo(known).filter(([at]) => !there.has(at));
    const whole = lacking.length === 0 ? kept : [...kept, ...lacking].sort(([a], [b]) => a - b);
    writeFileAtomic(path, whole.map(([, line]) => `${line}\n`).join(''));
  }

  /**
   * Removes what a directory has of steps later than `step`, in files such as 12.jsonl and validation_12.jsonl; all of them for step 0.
   * @throws TroupeError IO naming the file
   */
  rewindSteps(name: string, step: number): void {
    const directory = this.file(name);
    const names = statSync(directory, { throwIfNoEntry: false })?.isDirectory() ? readdirSync(directory) : [];
    for (const one of names) {
      const [, at] = STEP_FILE.exec(one) ?? [];
      if (at === undefined || (step > 0 && Number(at) <= step)) continue;
      const path = join(directory, one);
      try {
        rmSync(path, { force: true });
      } catch (error) {
        throw asTroupeError(error, `remove ${path}, which is of an earlier run`);
      }
    }
  }

  /**
   * A few generations of a step, always: samples/{name}.jsonl, evenly spread over the batch. `details`: what else is known of a row;
   * with its `index` it is added where the row does not have a key of that name.
   */
  writeSamples(
    name: string,
    rows: readonly DumpRow[],
    details: (index: number) => Record<string, unknown> = () => ({}),
  ): void {
    this.checkThere();
    const stride = Math.max(1, Math.floor(rows.length / SAMPLES_PER_STEP));
    const chosen = rows.flatMap((row, index): DumpRow[] => {
      if (index % stride !== 0 || index / stride >= SAMPLES_PER_STEP) return [];
      const known = Object.entries({ index, ...details(index) });
      return [{ ...row, ...Object.fromEntries(known.filter(([key]) => !Object.hasOwn(row, key))) }];
    });
    writeDump(join(this.path, 'samples'), name, chosen);
  }
}

function stepOf(line: string): number | null {
  try {
    const { step } = JSON.parse(line) as { step?: unknown };
    return typeof step === 'number' ? step : null;
  } catch {
    return null;
  }
}

/** `directory`/{name}.jsonl, one row per line. */
export function writeDump(directory: string, name: string, rows: readonly DumpRow[]): void {
  const path = join(directory, `${name}.jsonl`);
  try {
    makeDirectories(resolve(directory));
    writeFileSync(path, rows.map((row) => `${toJson(row)}\n`).join(''));
  } catch (error) {
    discard(path);
    throw asTroupeError(error, `write ${path}`);
  }
}
