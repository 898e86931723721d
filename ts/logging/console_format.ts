import { printable } from '../base/printable';
import type { Metrics } from './logger';

/** One value on the console. */
export interface Shown {
  readonly group: string;
  readonly label: string;
  readonly metric: string;
  /** A narrow terminal shows those with the smallest numbers. */
  readonly rank: number;
  readonly format?: (value: number) => string;
}

const seconds = (value: number): string => value.toFixed(value < 10 ? 2 : 1);
const whole = (value: number): string => (Number.isFinite(value) ? String(Math.round(value)) : String(value));

/** What people look at first, in this order, where it is there. The rest is in metrics.jsonl and timings.jsonl. */
export const SHOWN: readonly Shown[] = [
  { group: 'reward', label: 'score', metric: 'critic/score/mean', rank: 1 },
  { group: 'reward', label: 'reward', metric: 'critic/rewards/mean', rank: 8 },
  { group: 'policy', label: 'pg_loss', metric: 'actor/pg_loss', rank: 9 },
  { group: 'policy', label: 'kl_loss', metric: 'actor/kl_loss', rank: 3 },
  { group: 'policy', label: 'kl', metric: 'actor/reward_kl_penalty', rank: 3 },
  { group: 'policy', label: 'ppo_kl', metric: 'actor/ppo_kl', rank: 11 },
  { group: 'policy', label: 'entropy', metric: 'actor/entropy', rank: 4 },
  { group: 'policy', label: 'grad_norm', metric: 'actor/grad_norm', rank: 5 },
  { group: 'policy', label: 'lr', metric: 'actor/lr', rank: 12 },
  { group: 'critic', label: 'vf_loss', metric: 'critic/vf_loss', rank: 10 },
  { group: 'critic', label: 'vf_expl', metric: 'critic/vf_explained_var', rank: 13 },
  { group: 'training', label: 'loss', metric: 'train/loss', rank: 1 },
  { group: 'training', label: 'val_loss', metric: 'val/loss', rank: 2 },
  { group: 'training', label: 'grad_norm', metric: 'train/grad_norm', rank: 5 },
  { group: 'training', label: 'lr', metric: 'train/lr', rank: 6 },
  { group: 'reward', label: 'gen_batches', metric: 'train/num_gen_batches', rank: 4 },
  { group: 'response', label: 'len', metric: 'response_length/mean', rank: 2 },
  { group: 'response', label: 'clipped', metric: 'response_length/clip_ratio', rank: 14 },
  { group: 'time', label: 's', metric: 'timing_s/step', rank: 6, format: seconds },
  { group: 'time', label: 'tok/s', metric: 'perf/throughput', rank: 7, format: whole },
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

export function formatShown({ metric, format }: Shown, metrics: Metrics): string {
  const value = metrics[metric];
  return value === undefined ? '' : (format ?? formatNumber)(value);
}

/** What a step has now and then: validation, trouble, a checkpoint. */
export function formatOccasional(metrics: Metrics): string[] {
  const parts: string[] = [];
  for (const [name, value] of Object.entries(metrics)) {
    if (name.startsWith('val-core/'))
      parts.push(`val ${printable(name.slice('val-core/'.length))} ${formatNumber(value)}`);
  }
  for (const [name, label] of TROUBLE) {
    const count = metrics[name] ?? 0;
    if (count > 0) parts.push(`${label}: ${formatNumber(count)}`);
  }
  const saved = metrics['timing_s/save_checkpoint'];
  if (saved !== undefined) parts.push(`checkpoint saved in ${saved.toFixed(2)} s`);
  return parts;
}

/** "score 0.5 | pg_loss -0.01 | ..."; null when there is nothing worth a line. */
export function formatMetrics(metrics: Metrics): string | null {
  const values: string[] = [];
  const times: string[] = [];
  for (const shown of SHOWN) {
    if (!isWorthShowing(shown, metrics)) continue;
    const text = formatShown(shown, metrics);
    if (shown.group === 'time') times.push(`${text} ${shown.label}`);
    else values.push(`${shown.label} ${text}`);
  }
  const all = [...values, ...formatOccasional(metrics), ...times];
  return all.length === 0 ? null : all.join(' | ');
}

/** Rewards are worth a place only when something was taken off the scores. */
export function isWorthShowing({ metric }: Shown, metrics: Metrics): boolean {
  const value = metrics[metric];
  if (metric === 'critic/rewards/mean' && value === metrics['critic/score/mean']) return false;
  return value !== undefined;
}
