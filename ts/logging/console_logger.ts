import type { MetricLogger, Metrics } from './logger';
import { ProgressBar, type RunLength } from './progress_bar';
import { formatDuration, RemainingTime } from './remaining_time';

/** What a line shows, in this order, where it is there. The rest is in metrics.jsonl and timings.jsonl. */
const SHOWN: readonly (readonly [metric: string, label: string])[] = [
  ['critic/score/mean', 'score'],
  ['critic/rewards/mean', 'reward'],
  ['actor/pg_loss', 'pg_loss'],
  ['actor/kl_loss', 'kl_loss'],
  ['actor/reward_kl_penalty', 'kl'],
  ['actor/ppo_kl', 'ppo_kl'],
  ['actor/entropy', 'entropy'],
  ['critic/vf_loss', 'vf_loss'],
  ['critic/vf_explained_var', 'vf_expl'],
  ['train/loss', 'loss'],
  ['response_length/mean', 'len'],
  ['actor/grad_norm', 'grad_norm'],
  ['train/grad_norm', 'grad_norm'],
  ['actor/lr', 'lr'],
  ['train/lr', 'lr'],
  ['val/loss', 'val_loss'],
];

/** Counts of what should not happen: shown when it did. */
const TROUBLE: readonly (readonly [metric: string, label: string])[] = [
  ['actor/update_skipped', 'SKIPPED updates (non-finite gradient)'],
  ['critic/update_skipped', 'SKIPPED critic updates (non-finite gradient)'],
  ['train/update_skipped', 'SKIPPED updates (non-finite gradient)'],
  ['reward/failures', 'FAILED rewards'],
];

/** Four significant digits, in as few characters as they take. */
export function formatNumber(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** "score 0.5 | pg_loss -0.01 | ..."; null when there is nothing worth a line. */
export function formatMetrics(metrics: Metrics): string | null {
  const parts: string[] = [];
  for (const [name, label] of SHOWN) {
    const value = metrics[name];
    if (value === undefined) continue;
    // Rewards are worth a column only when something was taken off the scores.
    if (name === 'critic/rewards/mean' && value === metrics['critic/score/mean']) continue;
    parts.push(`${label} ${formatNumber(value)}`);
  }
  for (const [name, value] of Object.entries(metrics)) {
    if (name.startsWith('val-core/'))
      parts.push(`val ${name.slice('val-core/'.length)} ${formatNumber(value)}`);
  }
  for (const [name, label] of TROUBLE) {
    const count = metrics[name] ?? 0;
    if (count > 0) parts.push(`${label}: ${formatNumber(count)}`);
  }
  const seconds = metrics['timing_s/step'];
  if (seconds !== undefined) parts.push(`${seconds.toFixed(seconds < 10 ? 2 : 1)} s`);
  const throughput = metrics['perf/throughput'];
  if (throughput !== undefined) parts.push(`${Math.round(throughput)} tok/s`);
  const saved = metrics['timing_s/save_checkpoint'];
  if (saved !== undefined) parts.push(`checkpoint saved in ${saved.toFixed(2)} s`);
  return parts.length === 0 ? null : parts.join(' | ');
}

/** One compact line per step; on a terminal with a progress bar below, elsewhere with the remaining time at its end. */
export class ConsoleLogger implements MetricLogger {
  readonly name = 'console';
  private readonly remaining: RemainingTime | null;
  private bar: ProgressBar | null = null;

  /** `length`: null when it is not known how many steps there will be. */
  constructor(
    private readonly length: RunLength | null,
    private readonly out: NodeJS.WritableStream & { isTTY?: boolean } = process.stdout,
    private readonly now: () => number = () => performance.now() / 1000,
  ) {
    this.remaining = length === null ? null : new RemainingTime(length.totalSteps);
    if (length !== null) this.remaining?.stepEnded(length.firstStep, now());
  }

  log(metrics: Metrics, step: number): void {
    this.remaining?.stepEnded(step, this.now());
    const text = formatMetrics(metrics);
    const total = this.length === null ? '' : `/${this.length.totalSteps}`;
    if (text !== null) this.print(`step ${step}${total} | ${text}`, step);
  }

  close(): void {
    this.bar?.close();
    this.bar = null;
  }

  private print(line: string, step: number): void {
    if (this.out.isTTY && this.length !== null) {
      // Not before the first line: until then, others have things to say.
      this.bar ??= new ProgressBar(this.length, this.out, () => this.secondsLeft());
      this.bar.print(line, step);
      return;
    }
    const left = step === this.length?.totalSteps ? null : this.secondsLeft();
    this.out.write(`${line}${left === null ? '' : ` | ${formatDuration(left)} left`}\n`);
  }

  private secondsLeft(): number | null {
    return this.remaining?.seconds(this.now()) ?? null;
  }
}
