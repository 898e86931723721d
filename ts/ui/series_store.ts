// The metrics of one run in columns: what curves are drawn from.
import { Extremes } from './extremes';
import type { MetricInfo, Series, XAxis } from './protocol';
import { lowerBound, smoothed, thinned } from './thinning';

const MOST_BAD = 200;
/** What a step took besides timing_s/step. */
const BESIDE_STEP = ['timing_s/testing', 'timing_s/save_checkpoint'];

/** Values of one metric by ascending step. */
class Column {
  steps = new Float64Array(64);
  values = new Float64Array(64);
  length = 0;
  /** Indices of values that are not finite. */
  readonly bad: number[] = [];
  readonly extremes = new Extremes();
  private smooth: { weight: number; values: Float64Array } | null = null;

  /** A step that is there, or earlier than the last, takes its place and that of all after it: the run has gone back. */
  set(step: number, value: number): void {
    if (this.length > 0 && (this.steps[this.length - 1] as number) >= step) this.goBack(step);
    this.smooth = null;
    if (!Number.isFinite(value)) this.bad.push(this.length);
    if (this.length === this.steps.length) {
      const grown = (old: Float64Array): Float64Array<ArrayBuffer> => {
        const next = new Float64Array(2 * old.length);
        next.set(old);
        return next;
      };
      this.steps = grown(this.steps);
      this.values = grown(this.values);
    }
    this.steps[this.length] = step;
    this.values[this.length++] = value;
  }

  get last(): number {
    return this.values[this.length - 1] as number;
  }

  /** As `smoothed`; what was asked last is kept. */
  smoothed(weight: number): Float64Array {
    if (this.smooth?.weight !== weight)
      this.smooth = { weight, values: smoothed(this.values, this.length, weight) };
    return this.smooth.values;
  }

  private goBack(step: number): void {
    this.length = lowerBound(this.steps, this.length, step);
    this.extremes.truncate(this.length);
    this.bad.length = lowerBound(this.bad, this.bad.length, this.length);
  }
}

export interface SeriesRequest {
  x: XAxis;
  /** Of the axis; null: as far as it goes. */
  from: number | null;
  to: number | null;
  /** At most so many. */
  points: number;
  /** 0: none; below 1. */
  smoothing: number;
}

const rounded = (value: number): number | null =>
  Number.isFinite(value) ? Number(value.toPrecision(7)) : null;

export class SeriesStore {
  private readonly columns = new Map<string, Column>();
  /** Steps and what has been added up after each of them. */
  private readonly time = new Column();
  private readonly tokens = new Column();
  /** Numbers in all columns. */
  points = 0;

  clear(): void {
    this.columns.clear();
    this.time.length = 0;
    this.tokens.length = 0;
    this.points = 0;
  }

  /** A line of metrics.jsonl or timings.jsonl; one that has no step is left out. */
  add(line: Readonly<Record<string, unknown>>): void {
    const { step } = line;
    if (typeof step !== 'number' || !Number.isFinite(step)) return;
    for (const name of Object.keys(line)) {
      if (name === 'step') continue;
      const given = line[name];
      // "NaN", "Infinity": as a run writes what JSON has no number for.
      const value = typeof given === 'number' ? given : typeof given === 'string' ? Number(given) : null;
      if (value === null || (typeof given === 'string' && !/^(NaN|-?Infinity)$/.test(given))) continue;
      let column = this.columns.get(name);
      if (column === undefined) {
        column = new Column();
        this.columns.set(name, column);
      }
      column.set(step, value);
      this.points++;
      if (name === 'timing_s/step' || BESIDE_STEP.includes(name))
        this.addUp(this.time, step, value, name === 'timing_s/step');
      if (name === 'perf/total_num_tokens') this.addUp(this.tokens, step, value, true);
    }
  }

  metrics(): MetricInfo[] {
    return [...this.columns]
      .map(([name, column]) => ({
        name,
        points: column.length,
        last: rounded(column.last),
        lastStep: column.steps[column.length - 1] as number,
      }))
      .sort((a, b) => a.name.localeCompare(b.name, 'en'));
  }

  /** null: the run does not have it. */
  series(name: string, request: SeriesRequest): Series | null {
    const column = this.columns.get(name);
    if (column === undefined) return null;
    const { length, values } = column;
    const xs = this.axis(column, request.x);
    const { from, to } = request;
    // One point more on either side, so that lines lead to the edges.
    const start = from === null ? 0 : Math.max(0, lowerBound(xs, length, from) - 1);
    const end = to === null ? length : Math.min(length, lowerBound(xs, length, to) + 1);
    const chosen = thinned(values, start, end, request.points, (a, b) => column.extremes.find(values, a, b));
    const smooth = request.smoothing > 0 ? column.smoothed(request.smoothing) : null;
    const firstBad = lowerBound(column.bad, column.bad.length, start);
    const bad = column.bad.slice(firstBad, firstBad + MOST_BAD).filter((i) => i < end);
    return {
      name,
      x: chosen.map((i) => xs[i] as number),
      y: chosen.map((i) => rounded(values[i] as number)),
      ...(smooth ? { smooth: chosen.map((i) => rounded(smooth[i] as number)) } : {}),
      total: Math.max(0, end - start),
      bad: bad.map((i) => xs[i] as number),
    };
  }

  /** Every point from `from` to `to`: x, value and smoothed value; nothing where the run does not have the metric. */
  *rows(
    name: string,
    { x, from, to, smoothing }: Omit<SeriesRequest, 'points'>,
  ): Generator<[number, number, number | null]> {
    const column = this.columns.get(name);
    if (column === undefined) return;
    const { length, values } = column;
    const xs = this.axis(column, x);
    const smooth = smoothing > 0 ? column.smoothed(smoothing) : null;
    for (let i = from === null ? 0 : lowerBound(xs, length, from); i < length; i++) {
      if (to !== null && (xs[i] as number) > to) return;
      yield [xs[i] as number, values[i] as number, smooth === null ? null : (smooth[i] as number)];
    }
  }

  private addUp(sums: Column, step: number, value: number, isNew: boolean): void {
    if (!Number.isFinite(value)) return;
    const before = this.at(sums, isNew ? step - 1 : step);
    sums.set(step, before + value);
  }

  private at({ steps, values, length }: Column, step: number): number {
    const index = lowerBound(steps, length, step + 0.5) - 1;
    return index < 0 ? 0 : (values[index] as number);
  }

  private axis(column: Column, x: XAxis): ArrayLike<number> {
    if (x === 'step') return column.steps;
    const sums = x === 'time' ? this.time : this.tokens;
    const out = new Float64Array(column.length);
    let index = 0;
    for (let i = 0; i < column.length; i++) {
      while (index < sums.length && (sums.steps[index] as number) <= (column.steps[i] as number)) index++;
      out[i] = index === 0 ? 0 : (sums.values[index - 1] as number);
    }
    return out;
  }
}
