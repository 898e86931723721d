// The runs below a directory: found by the files that they have, described from the ends of these files.
import type { Inside } from './inside';
import type { RunSummary } from './protocol';
import { summaryOf } from './run_summary';

const MARKS = ['metrics.jsonl', 'events.jsonl'];
/** Of directories below the runs directory. */
const DEEPEST = 5;
const MOST_DIRECTORIES = 50_000;
/** Directories of a run, which hold no runs; elsewhere a run may be called so. */
const OWN = /^(samples|tokens|tensorboard|final_model|final_adapter|global_step_\d+)$/;
const NO_RUNS = /^(node_modules$|\.)/;
/** Milliseconds for which a summary whose files have not changed is still good: its process may have gone. */
const FRESH = 3_000;

interface Known {
  summary: RunSummary;
  /** Sizes and times of the files that it is from. */
  stamp: string;
  at: number;
}

export class RunList {
  private readonly known = new Map<string, Known>();
  private ids: string[] = [];

  constructor(private readonly inside: Inside) {}

  /** Looks for runs anew. */
  scan(): void {
    const found: string[] = [];
    let left = MOST_DIRECTORIES;
    const queue: { path: string; depth: number }[] = [{ path: '', depth: 0 }];
    for (const { path, depth } of queue) {
      if (left-- <= 0) break;
      const entries = this.inside.list(path);
      const isRun = entries.some((entry) => entry.isFile() && MARKS.includes(entry.name));
      if (isRun) found.push(path);
      if (depth >= DEEPEST) continue;
      for (const entry of entries)
        if (entry.isDirectory() && !NO_RUNS.test(entry.name) && !(isRun && OWN.test(entry.name)))
          queue.push({ path: path === '' ? entry.name : `${path}/${entry.name}`, depth: depth + 1 });
    }
    for (const id of this.known.keys()) if (!found.includes(id)) this.known.delete(id);
    this.ids = found;
  }

  has(id: string): boolean {
    return this.ids.includes(id);
  }

  /** Of the last scan. */
  get found(): readonly string[] {
    return this.ids;
  }

  /** The newest state of each, the one that changed last first. */
  all(): RunSummary[] {
    return this.ids
      .map((id) => this.summary(id))
      .sort((a, b) => b.changed - a.changed || a.id.localeCompare(b.id));
  }

  summary(id: string): RunSummary {
    const known = this.known.get(id);
    const now = performance.now();
    const stamp = this.stamp(id);
    const settled = known !== undefined && known.summary.state !== 'running';
    if (known !== undefined && known.stamp === stamp && (settled || now - known.at < FRESH))
      return known.summary;
    const summary = summaryOf(this.inside, id);
    this.known.set(id, { summary, stamp, at: now });
    return summary;
  }

  /** Those that have changed since their summary was made. */
  changed(): RunSummary[] {
    return this.ids.flatMap((id) => {
      const before = this.known.get(id)?.summary;
      const now = this.summary(id);
      return now === before ? [] : [now];
    });
  }

  private stamp(id: string): string {
    return ['metrics.jsonl', 'timings.jsonl', 'events.jsonl']
      .map((name) => this.inside.stamp(`${id}/${name}`))
      .join('|');
  }
}
