import { printable } from '../base/printable';
import { TroupeError } from '../errors';
import type { RewardManagerOptions } from '../reward/contract/types';
import type { Metrics } from './metrics/metrics';
import type { Scored } from './rollout';

/**
 * One number per response, [B]: what the reward function returned as `name` (numbers and booleans), or the score itself for
 * `score`. Unless `onError` is fail, a response that has nothing because its reward function failed counts 0, as its score does.
 * @throws TroupeError REWARD_FAILED naming the response, `name` and `key`, the key of the configuration that asks for it
 */
export function rewardColumn(
  { batch, rewards }: Scored,
  name: string,
  key: string,
  onError: RewardManagerOptions['onError'],
): Float64Array {
  const column = rewards.extras[name];
  const returned = (i: number): string[] =>
    Object.keys(rewards.extras).filter((extra) => rewards.extras[extra]?.[i] !== undefined);
  return Float64Array.from({ length: batch.size }, (_, i) => {
    const value = column?.[i] ?? (name === 'score' ? rewards.scores[i] : undefined);
    const number = typeof value === 'boolean' ? Number(value) : value;
    if (typeof number === 'number' && Number.isFinite(number)) return number;
    if (onError !== 'fail' && returned(i).length === 0) return 0;
    const got =
      value === undefined
        ? `only ${printable([...new Set(['score', ...returned(i)])].join(', '))}`
        : `${name} = ${printable(String(value), { max: 100 })}`;
    throw new TroupeError(
      'REWARD_FAILED',
      `[reward] ${key} expects the reward function to return a finite number '${name}', but it returned ${got} for response ${i} ` +
        `of the batch (data_source ${printable(JSON.stringify(batch.get('dataSource')[i]))}): return it beside the score, or change ${key}`,
    );
  });
}

/** The columns that gdpo combines, by name, and gdpo/{name}/{mean,std,max,min} (std of the population, as verl). */
export function rewardComponents(
  scored: Scored,
  names: readonly string[],
  onError: RewardManagerOptions['onError'],
): { components: Record<string, number>[]; metrics: Metrics } {
  const metrics: Metrics = {};
  const columns = names.map((name) => rewardColumn(scored, name, 'algorithm.gdpo_reward_keys', onError));
  columns.forEach((column, k) => {
    const mean = column.reduce((sum, x) => sum + x, 0) / column.length;
    const squares = column.reduce((sum, x) => sum + (x - mean) ** 2, 0);
    Object.assign(metrics, {
      [`gdpo/${names[k]}/mean`]: mean,
      [`gdpo/${names[k]}/std`]: Math.sqrt(squares / column.length),
      [`gdpo/${names[k]}/max`]: column.reduce((a, b) => Math.max(a, b)),
      [`gdpo/${names[k]}/min`]: column.reduce((a, b) => Math.min(a, b)),
    });
  });
  const components = Array.from({ length: scored.batch.size }, (_, i) =>
    Object.fromEntries(names.map((name, k) => [name, columns[k]?.[i] as number])),
  );
  return { components, metrics };
}
