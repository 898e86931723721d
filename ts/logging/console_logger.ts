import { formatMetrics, formatOccasional } from './console_format';
import { ConsoleTable } from './console_table';
import { generationsTable } from './generations_table';
import type { Generation, MetricLogger, Metrics } from './logger';
import { ProgressBar } from './progress_bar';
import { formatDuration, RemainingTime } from './remaining_time';
import type { RunLength } from './run_length';

const DEFAULT_WIDTH = 120;

type Output = NodeJS.WritableStream & { isTTY?: boolean; columns?: number };

/**
 * What went wrong with a stream since it was last asked. An error event that nobody listens for ends the process; whoever does
 * listen, such as the command line, says it himself. A reader that has gone (| head) is nothing wrong.
 */
const outputErrors = new WeakMap<Output, { last: Error | null }>();

function watched(out: Output): { last: Error | null } {
  const known = outputErrors.get(out);
  if (known !== undefined) return known;
  const errors: { last: Error | null } = { last: null };
  outputErrors.set(out, errors);
  if (out.listenerCount('error') > 0) return errors;
  out.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') errors.last = error;
  });
  return errors;
}

/**
 * On a terminal a table, one row per step, with a progress bar below; elsewhere one compact line per step with the
 * remaining time at its end.
 */
export class ConsoleLogger implements MetricLogger {
  readonly name = 'console';
  private readonly remaining: RemainingTime | null;
  private readonly table: ConsoleTable;
  private bar: ProgressBar | null = null;
  private readonly errors: { last: Error | null };

  /** `length`: null when it is not known how many steps there will be. */
  constructor(
    private readonly length: RunLength | null,
    private readonly out: Output = process.stdout,
    private readonly now: () => number = () => performance.now() / 1000,
  ) {
    this.errors = watched(out);
    this.remaining = length === null ? null : new RemainingTime(length.totalSteps);
    if (length !== null) this.remaining?.stepEnded(length.firstStep, now());
    const digits = String(length?.totalSteps ?? 100_000).length;
    this.table = new ConsoleTable(() => this.width(), Math.max(4, length === null ? digits : 2 * digits + 1));
  }

  log(metrics: Metrics, step: number): void {
    this.remaining?.stepEnded(step, this.now());
    const total = this.length === null ? '' : `/${this.length.totalSteps}`;
    if (this.out.isTTY) {
      const rest = formatOccasional(metrics);
      const lines = this.table.lines(`${step}${total}`, metrics);
      if (rest.length > 0) lines.push(`step ${step}${total} | ${rest.join(' | ')}`);
      if (lines.length > 0) this.print(lines.join('\n'), step);
      return;
    }
    const text = formatMetrics(metrics);
    if (text === null) return;
    const left = step === this.length?.totalSteps ? null : this.secondsLeft();
    const end = left === null ? '' : ` | ${formatDuration(left)} left`;
    this.print(`step ${step}${total} | ${text}${end}`, step);
  }

  logGenerations(generations: readonly Generation[], step: number): void {
    this.print(generationsTable(generations, step, this.width()), step);
  }

  close(): void {
    this.bar?.close();
    this.bar = null;
    this.check();
  }

  private width(): number {
    return this.out.columns || DEFAULT_WIDTH;
  }

  private print(text: string, step: number): void {
    if (!this.out.isTTY || this.length === null) {
      this.out.write(`${text}\n`);
    } else {
      // Not before the first line: until then, others have things to say.
      this.bar ??= new ProgressBar(this.length, this.out, () => this.secondsLeft());
      this.bar.print(text, step);
    }
    this.check();
  }

  /** Throws what went wrong with an earlier line: a stream says so only later. */
  private check(): void {
    const { last } = this.errors;
    this.errors.last = null;
    if (last !== null) throw last;
  }

  private secondsLeft(): number | null {
    return this.remaining?.seconds(this.now()) ?? null;
  }
}
