// Files with all that the workers of a run say: one per start and worker, of bounded size and number.
import { appendFileSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { makeDirectories } from '../base/make_directories';

export interface WorkerLogLimits {
  /** Bytes of one worker's log; the older half of it lies in a second file. */
  maxBytes: number;
  /** Starts whose logs are kept, this one included. */
  starts: number;
}

const START = /^start_(\d+)$/;
/** Of a line; what follows is left out. */
const MOST_CHARACTERS = 64 << 10;

/**
 * The logs of the workers of one start: files only of those that say something, so that a start which is refused leaves nothing. Nothing
 * here throws: a log that cannot be written is no reason to end a run.
 */
export class WorkerLogs {
  private own: string | null = null;

  /** `parent`: of all starts. */
  constructor(
    private readonly parent: string,
    private readonly limits: WorkerLogLimits,
  ) {}

  /** A directory of its own, numbered after the ones before it; made when it is asked for, and the oldest of too many removed. */
  get directory(): string {
    if (this.own === null) {
      const earlier = numbersIn(this.parent);
      const own = join(this.parent, nameOf((earlier.at(-1) ?? 0) + 1));
      this.own = own;
      attempt(() => makeDirectories(own));
      for (const old of earlier.slice(0, Math.max(0, earlier.length + 1 - this.limits.starts)))
        attempt(() => rmSync(join(this.parent, nameOf(old)), { recursive: true }));
    }
    return this.own;
  }

  /** `pool`: null where there is one. */
  of(pool: string | null, rank: number): WorkerLog {
    const name = `${pool === null ? '' : `${pool}_`}rank_${rank}.log`;
    return new WorkerLog(() => join(this.directory, name), this.limits.maxBytes);
  }
}

export class WorkerLog {
  private file: string | null = null;
  private bytes = 0;
  private missed = 0;
  /** Notes from before anything was said. */
  private held: string[] = [];

  constructor(
    private readonly place: () => string,
    private readonly maxBytes: number,
  ) {}

  /** Of the file; null: there is nothing in it. */
  get path(): string | null {
    return this.file;
  }

  /** A line that the worker has written. */
  line(text: string, isError: boolean): void {
    this.write(stamped(`${isError ? 'stderr' : 'stdout'} ${text.slice(0, MOST_CHARACTERS)}`));
  }

  /** Where its threads are, line by line. */
  stacks(text: string): void {
    for (const line of text.split('\n')) this.write(stamped(`------ ${line}`));
  }

  /** What is known of the worker from elsewhere, and of use beside what it says. */
  note(text: string): void {
    const line = stamped(`------ ${text}`);
    if (this.file === null) this.held.push(line);
    else this.write(line);
  }

  private write(line: string): void {
    const path = this.file ?? this.open();
    const missed = this.missed === 0 ? '' : stamped(`------ ${this.missed} lines could not be written`);
    const whole = `${missed}${this.held.join('')}${line}`;
    const size = Buffer.byteLength(whole);
    const written = attempt(() => {
      if (this.bytes > 0 && this.bytes + size > this.maxBytes / 2) {
        renameSync(path, `${path}.1`);
        this.bytes = 0;
      }
      appendFileSync(path, whole);
    });
    this.bytes += written ? size : 0;
    this.missed = written ? 0 : this.missed + 1;
    if (written) this.held = [];
  }

  private open(): string {
    const path = this.place();
    // Of a worker that is started again under the same name.
    attempt(() => {
      this.bytes = statSync(path).size;
    });
    this.file = path;
    return path;
  }
}

const stamped = (text: string): string => `${new Date().toISOString()} ${text}\n`;

const nameOf = (start: number): string => `start_${String(start).padStart(4, '0')}`;

function numbersIn(directory: string): number[] {
  let names: string[] = [];
  attempt(() => {
    names = readdirSync(directory);
  });
  return names
    .flatMap((name) => START.exec(name)?.[1] ?? [])
    .map(Number)
    .sort((a, b) => a - b);
}

/** Whether it worked. */
function attempt(work: () => void): boolean {
  try {
    work();
    return true;
  } catch {
    return false;
  }
}
