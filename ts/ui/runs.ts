// All runs of a directory, and those of them that are looked at, in memory.
import type { Inside } from './inside';
import type { RunStamp } from './protocol';
import { RunList } from './run_list';
import { RunView } from './run_view';

/** Numbers of metrics that are kept: beyond it the run that was looked at longest ago goes. */
const MOST_POINTS = 40_000_000;
const MOST_VIEWS = 64;
/** Milliseconds for which what was read is new enough for an answer: news come with what has been read. */
const FRESH = 100;

export class Runs {
  readonly list: RunList;
  /** In the order in which they were last looked at. */
  private readonly views = new Map<string, RunView>();
  private readonly told = new Map<string, string>();

  constructor(readonly inside: Inside) {
    this.list = new RunList(inside);
    this.list.scan();
  }

  /** A run with all that it has written up to now; null when there is none. */
  view(id: string): RunView | null {
    if (!this.list.has(id)) {
      this.list.scan();
      if (!this.list.has(id)) {
        this.views.delete(id);
        return null;
      }
    }
    const view = this.views.get(id) ?? new RunView(this.inside, id);
    this.views.delete(id);
    this.views.set(id, view);
    view.refresh(FRESH);
    this.evict();
    return view;
  }

  /** What it stands at when it has changed since this was last asked; null: it has not, or it is not looked at. */
  newStamp(id: string): RunStamp | null {
    const view = this.views.get(id);
    if (view === undefined) return null;
    view.refresh();
    const text = JSON.stringify(view.stamp);
    if (this.told.get(id) === text) return null;
    this.told.set(id, text);
    return view.stamp;
  }

  /** What these stand at is news again. */
  tellAnew(ids: readonly string[]): void {
    for (const id of ids) this.told.delete(id);
  }

  private evict(): void {
    let points = [...this.views.values()].reduce((sum, { series }) => sum + series.points, 0);
    for (const [id, view] of this.views) {
      if (this.views.size <= 1 || (points <= MOST_POINTS && this.views.size <= MOST_VIEWS)) return;
      points -= view.series.points;
      this.views.delete(id);
    }
  }
}
