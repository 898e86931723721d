import { isRecord } from '../../base/check_options';
import { notFinite } from '../../base/not_finite';
import { printable } from '../../base/printable';
import { show } from '../../base/text';
import { TroupeError } from '../../errors';
import type { RewardManager, RewardSample, Rewards } from './types';

/**
 * A manager of one's own, whose rewards are looked at as those of built-in ones are when they are made. `name`: as messages call it.
 * Of `score`: @throws TroupeError REWARD_FAILED saying what came in place of rewards
 */
export function checkedManager(name: string, own: RewardManager): RewardManager {
  if (typeof (own as RewardManager | null | undefined)?.score !== 'function')
    throw failed(name, `expected { score(samples) } from its factory, got ${show(own)}`);
  return {
    score: async (samples) => checkedRewards(name, await own.score(samples), samples),
    close: () => own.close?.(),
  };
}

function checkedRewards(name: string, rewards: unknown, samples: readonly RewardSample[]): Rewards {
  const count = samples.length;
  if (!isRecord(rewards))
    throw failed(name, `expected { scores, extras, failures } from score, got ${show(rewards)}`);
  const { scores, extras, failures } = rewards;
  if (!isList(scores, count)) throw failed(name, `scores: expected ${count} numbers, got ${listed(scores)}`);
  if (!isRecord(extras)) throw failed(name, `extras: expected an object of arrays, got ${show(extras)}`);
  if (typeof failures !== 'number' || !Number.isInteger(failures) || failures < 0 || failures > count)
    throw failed(name, `failures: expected an integer from 0 to ${count}, got ${show(failures)}`);
  for (let i = 0; i < count; i++)
    if (typeof scores[i] !== 'number' || !Number.isFinite(scores[i]))
      throw failed(name, `scores[${i}]: expected a finite number, got ${show(scores[i])}${of(samples, i)}`);
  for (const [key, column] of Object.entries(extras)) {
    const where = `extras.${printable(key, { max: 100 })}`;
    if (!isList(column, count))
      throw failed(name, `${where}: expected ${count} values, got ${listed(column)}`);
    for (let i = 0; i < count; i++) checkValue(name, `${where}[${i}]`, column[i], of(samples, i));
  }
  return { ...(rewards as unknown as Rewards), scores: Float64Array.from(scores as ArrayLike<number>) };
}

function checkValue(name: string, where: string, value: unknown, whose: string): void {
  let found: ReturnType<typeof notFinite>;
  try {
    found = notFinite(value);
  } catch (error) {
    throw failed(name, `${where}: expected what JSON can hold, got ${show(value)}${whose}`, error);
  }
  if (found === null) return;
  const within = found.at === '' ? '' : ` (${printable(found.at, { max: 100 })})`;
  throw failed(name, `${where}${within}: expected finite numbers, got ${found.number}${whose}`);
}

/** An array, typed or not. */
const isList = (value: unknown, length: number): value is ArrayLike<unknown> =>
  (Array.isArray(value) || ArrayBuffer.isView(value)) && (value as unknown as unknown[]).length === length;

const listed = (value: unknown): string =>
  Array.isArray(value) || ArrayBuffer.isView(value)
    ? `${(value as unknown as unknown[]).length}`
    : show(value);

const of = (samples: readonly RewardSample[], i: number): string =>
  ` for response ${i} of the batch (data_source ${printable(show(samples[i]?.dataSource))})`;

const failed = (name: string, what: string, cause?: unknown): TroupeError =>
  new TroupeError('REWARD_FAILED', `[reward] the reward manager ${printable(name)}: ${what}`, { cause });
