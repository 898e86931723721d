import { formatShown, isWorthShowing, SHOWN, type Shown } from './console_format';
import type { Metrics } from './logger';

/** Holds every number of `formatNumber` ("-1.23e-10") and every label. */
const COLUMN = 9;
/** Rows after which the head is repeated. */
const ROWS_PER_HEAD = 20;

/**
 * Rows of metrics under a head of two lines, groups and labels, with as many columns as fit the terminal. The head
 * comes again when the columns change, and once per screenful.
 */
export class ConsoleTable {
  private columns: readonly Shown[] = [];
  private readonly seen = new Set<Shown>();
  private rows = 0;

  /** `width`: columns of the terminal now. `stepWidth`: characters of the first column. */
  constructor(
    private readonly width: () => number,
    private readonly stepWidth: number,
  ) {}

  /** The lines of a step, the head among them where it is due; none when the step has no metric of the table. */
  lines(step: string, metrics: Metrics): string[] {
    const present = SHOWN.filter((shown) => isWorthShowing(shown, metrics));
    if (present.length === 0) return [];
    for (const shown of present) this.seen.add(shown);
    const columns = this.fitting();
    const changed = columns.length !== this.columns.length || columns.some((c, i) => c !== this.columns[i]);
    this.columns = columns;
    const head = changed || this.rows % ROWS_PER_HEAD === 0;
    this.rows = head ? 1 : this.rows + 1;
    const row = this.line(step, (shown) => formatShown(shown, metrics));
    return head ? [...this.head(), row] : [row];
  }

  /** Of the columns that had a value so far those that fit, in their order; the others are those of the highest rank. */
  private fitting(): readonly Shown[] {
    const room = Math.max(1, Math.floor((this.width() - this.stepWidth) / (COLUMN + 1)));
    const chosen = new Set([...this.seen].sort((a, b) => a.rank - b.rank).slice(0, room));
    return SHOWN.filter((shown) => chosen.has(shown));
  }

  private head(): string[] {
    const group = (shown: Shown, i: number): string =>
      this.columns[i - 1]?.group === shown.group ? '' : shown.group;
    return [this.line('', group), this.line('step', ({ label }) => label)];
  }

  private line(step: string, cell: (shown: Shown, index: number) => string): string {
    const cells = this.columns.map((shown, i) => ` ${cell(shown, i).padStart(COLUMN)}`);
    return `${step.padEnd(this.stepWidth)}${cells.join('')}`.trimEnd();
  }
}
