import { readdirSync, readFileSync } from 'node:fs';

/** Between two looks, milliseconds: what a program can take in that time it may have beyond the limit. */
const INTERVAL_MS = 50;

interface Watched {
  /** The command that was started; all that descends from it belongs to the run. */
  root: number;
  limitKb: number;
  exceeded: () => void;
  members: Set<number>;
}

interface Status {
  parent: number;
  /** Memory that no file backs, or that is shared in memory, kB. */
  residentKb: number;
}

const kilobytes = (text: string, name: string): number =>
  Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)?.[1] ?? 0);

function statusOf(pid: number): Status | null {
  try {
    const text = readFileSync(`/proc/${pid}/status`, 'latin1');
    const residentKb = kilobytes(text, 'RssAnon') + kilobytes(text, 'RssShmem');
    return { parent: kilobytes(text, 'PPid'), residentKb };
  } catch {
    return null; // Gone meanwhile.
  }
}

/** A process's part of its memory, pages that n processes share counted 1/n; null: this process may not know. */
function proportionalKb(pid: number): number | null {
  try {
    const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'latin1');
    return kilobytes(text, 'Pss_Anon') + kilobytes(text, 'Pss_Shmem');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return code === 'EACCES' || code === 'EPERM' ? null : 0; // Otherwise it has gone meanwhile.
  }
}

/**
 * Watches how much memory all processes of a run hold together, which no limit of the kernel on single processes says. One
 * pass over /proc serves all runs; a process that belongs to none is read once.
 */
export class MemoryWatch {
  private readonly runs = new Set<Watched>();
  private readonly strangers = new Set<number>();
  private timer: NodeJS.Timeout | null = null;

  /** Calls `exceeded` once when `root` and its descendants hold more than `limitMb`. Ends with the function that it returns. */
  watch(root: number, limitMb: number, exceeded: () => void): () => void {
    const run: Watched = { root, limitKb: limitMb * 1024, exceeded, members: new Set([root]) };
    this.runs.add(run);
    // What was a stranger's id may be this one's by now.
    this.strangers.delete(root);
    this.timer ??= setInterval(() => this.look(), INTERVAL_MS).unref();
    return () => {
      this.runs.delete(run);
      if (this.runs.size > 0 || this.timer === null) return;
      clearInterval(this.timer);
      this.timer = null;
      this.strangers.clear();
    };
  }

  private look(): void {
    const seen = new Set(
      readdirSync('/proc')
        .map(Number)
        .filter((pid) => pid > 0),
    );
    for (const pid of this.strangers) if (!seen.has(pid)) this.strangers.delete(pid);
    const statuses = new Map<number, Status>();
    for (const pid of seen) {
      const status = this.strangers.has(pid) ? null : statusOf(pid);
      if (status !== null) statuses.set(pid, status);
    }
    for (const run of this.runs) this.check(run, statuses);
    const members = new Set([...this.runs].flatMap((run) => [...run.members]));
    for (const pid of statuses.keys()) if (!members.has(pid)) this.strangers.add(pid);
  }

  private check(run: Watched, statuses: ReadonlyMap<number, Status>): void {
    for (const pid of run.members) if (!statuses.has(pid)) run.members.delete(pid);
    for (let grew = true; grew; ) {
      grew = false;
      for (const [pid, { parent }] of statuses) {
        if (run.members.has(pid) || !run.members.has(parent)) continue;
        run.members.add(pid);
        grew = true;
      }
    }
    const total = (of: (pid: number) => number): number =>
      [...run.members].reduce((sum, pid) => sum + of(pid), 0);
    const resident = (pid: number): number => statuses.get(pid)?.residentKb ?? 0;
    if (total(resident) <= run.limitKb) return;
    // Pages that a fork still shares count several times in the first sum; the second costs more.
    const held = (): number => total((pid) => proportionalKb(pid) ?? resident(pid));
    // Twice: a fork while the parts are read leaves those before it too large.
    if (held() > run.limitKb && held() > run.limitKb) run.exceeded();
  }
}
