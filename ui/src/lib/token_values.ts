// What can be said of one token, and the colour that says it.
import type { TokenRecord } from '../../../ts/ui/protocol';

export interface Channel {
  id: string;
  title: string;
  what: string;
  /** From white to one colour, or from one over white to another; 'mask': two kinds. */
  kind: 'one' | 'two' | 'mask';
  /** null: not known of this token. */
  value: (record: TokenRecord, i: number) => number | null;
  /** Where the middle of two colours lies. */
  middle: number;
}

const at = (values: (number | null)[] | undefined, i: number): number | null => values?.[i] ?? null;
const ratio = (top: number | null, bottom: number | null): number | null =>
  top === null || bottom === null ? null : Math.exp(top - bottom);

export const CHANNELS: readonly Channel[] = [
  {
    id: 'log_prob',
    title: 'log-prob',
    what: 'log-probability under the policy before the update',
    kind: 'one',
    middle: 0,
    value: (r, i) => at(r.old_log_probs, i) ?? at(r.rollout_log_probs, i),
  },
  {
    id: 'advantage',
    title: 'advantage',
    what: 'advantage that the update used',
    kind: 'two',
    middle: 0,
    value: (r, i) => at(r.advantages, i),
  },
  {
    id: 'entropy',
    title: 'entropy',
    what: 'entropy of the policy at this token, nats',
    kind: 'one',
    middle: 0,
    value: (r, i) => at(r.entropy, i),
  },
  {
    id: 'ratio_old',
    title: 'ratio new / old',
    what: 'probability after the update over that before it',
    kind: 'two',
    middle: 1,
    value: (r, i) => ratio(at(r.new_log_probs, i), at(r.old_log_probs, i)),
  },
  {
    id: 'ratio_rollout',
    title: 'ratio old / rollout',
    what: 'probability that the trainer computed over that of the engine that sampled',
    kind: 'two',
    middle: 1,
    value: (r, i) => ratio(at(r.old_log_probs, i), at(r.rollout_log_probs, i)),
  },
  {
    id: 'ratio_ref',
    title: 'ratio to reference',
    what: 'probability under the policy over that under the reference',
    kind: 'two',
    middle: 1,
    value: (r, i) => ratio(at(r.old_log_probs, i), at(r.ref_log_probs, i)),
  },
  {
    id: 'value',
    title: 'value',
    what: 'what the critic predicted',
    kind: 'two',
    middle: 0,
    value: (r, i) => at(r.values, i),
  },
  {
    id: 'return',
    title: 'return',
    what: 'what the critic was to predict',
    kind: 'two',
    middle: 0,
    value: (r, i) => at(r.returns, i),
  },
  {
    id: 'mask',
    title: 'mask',
    what: 'tokens of the policy, and those of tools and users',
    kind: 'mask',
    middle: 0,
    value: (r, i) => r.mask[i] ?? null,
  },
];

/** Those of which the record knows something. */
export const channelsOf = (record: TokenRecord): Channel[] =>
  CHANNELS.filter(({ value }) => record.tokens.some((_, i) => value(record, i) !== null));

/** Smallest and largest of a channel; around the middle, where it has one. */
export function rangeOf(record: TokenRecord, { kind, middle, value }: Channel): [number, number] {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  record.tokens.forEach((_, i) => {
    const one = value(record, i);
    if (one !== null) [low, high] = [Math.min(low, one), Math.max(high, one)];
  });
  if (low > high) return [0, 1];
  if (kind !== 'two') return low === high ? [low - 1, high] : [low, high];
  const reach = Math.max(high - middle, middle - low, 1e-6);
  return [middle - reach, middle + reach];
}

/** Of the ground behind a token. What is unlikely, uncertain or far from the middle is strong; text stays readable on all of it. */
export function groundOf(
  value: number | null,
  [low, high]: readonly [number, number],
  { id, kind, middle }: Channel,
): string {
  if (value === null) return 'transparent';
  const tint = (name: string, strength: number): string =>
    `color-mix(in srgb, var(--${name}) ${Math.round(Math.min(1, strength) * 46)}%, transparent)`;
  if (kind === 'mask') return value === 0 ? tint('line-strong', 1) : tint('series-0', 0.5);
  if (kind === 'two') {
    const share = Math.abs(value - middle) / (high - middle);
    return tint(value >= middle ? 'series-2' : 'series-4', share);
  }
  const share = (value - low) / (high - low || 1);
  return tint('series-1', id === 'log_prob' ? 1 - share : share);
}
