// Files with all that the workers of a run say: one per start and worker, of bounded size and number.
import { appendFileSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';

export interface WorkerLogLimits {
  /** Bytes of one worker's log; the older half of it lies in a second file. */
  maxBytes: number;
  /** Starts whose logs are kept, this one included. */
  starts: number;
}

const START = /^start_(\d+)$/;
/** Of a line; what follows is left out. */
const MOST_CHARACTERS = 64 << 10;

/** The logs of the workers of one start. Nothing here throws: a log that cannot be written is no reason to end a run. */
export class WorkerLogs {
  /** A directory of its own, numbered after the ones before it. */
  readonly directory: string;
  private readonly maxBytes: number;

  /** `directory`: of all starts. Removes the logs of those that are too many. */
  constructor(directory: string, { maxBytes, starts }: WorkerLogLimits) {
    const earlier = numbersIn(directory);
    const number = (earlier.at(-1) ?? 0) + 1;
    this.directory = join(directory, nameOf(number));
    this.maxBytes = maxBytes;
    attempt(() => mkdirSync(this.directory, { recursive: true }));
    for (const old of earlier.slice(0, Math.max(0, earlier.length + 1 - starts)))
      attempt(() => rmSync(join(directory, nameOf(old)), { recursive: true }));
  }

  /** `pool`: null where there is one. */
  of(pool: string | null, rank: number): WorkerLog {
    const name = `${pool === null ? '' : `${pool}_`}rank_${rank}.log`;
    return new WorkerLog(join(this.directory, name), this.maxBytes);
  }
}

export class WorkerLog {
  private bytes = 0;
  private missed = 0;

  constructor(
    readonly path: string,
    private readonly maxBytes: number,
  ) {
    // Of a worker that is started again under the same name.
    attempt(() => {
      this.bytes = statSync(path).size;
    });
  }

  /** A line that the worker has written. */
  line(text: string, isError: boolean): void {
    this.write(`${isError ? 'stderr' : 'stdout'} ${text.slice(0, MOST_CHARACTERS)}`);
  }

  /** What is known of the worker from elsewhere. */
  note(text: string): void {
    this.write(`------ ${text}`);
  }

  private write(text: string): void {
    const time = new Date().toISOString();
    const missed = this.missed === 0 ? '' : `${time} ------ ${this.missed} lines could not be written\n`;
    const whole = `${missed}${time} ${text}\n`;
    const size = Buffer.byteLength(whole);
    const written = attempt(() => {
      if (this.bytes > 0 && this.bytes + size > this.maxBytes / 2) {
        renameSync(this.path, `${this.path}.1`);
        this.bytes = 0;
      }
      appendFileSync(this.path, whole);
    });
    this.bytes += written ? size : 0;
    this.missed = written ? 0 : this.missed + 1;
  }
}

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
