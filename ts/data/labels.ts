// What a row says beside its prompt, in verl's schema.
import { show } from '../base/text';
import { TroupeError } from '../errors';
import { column, type Row, type WantedColumn } from './row';

export interface Labels {
  dataSource: string;
  groundTruth: unknown;
  extraInfo: Record<string, unknown>;
}

/** The column that names the data source. */
export const dataSourceColumn = (name: string): WantedColumn => ({ name, key: 'data.reward_fn_key' });

/** `dataSourceKey`: the column that names the data source (reward_fn_key). @throws TroupeError INVALID_DATA naming the column */
export function labelsOf(row: Row, dataSourceKey: string, where: string): Labels {
  const groundTruth = groundTruthOf(column(row, 'reward_model', where), where);
  const extraInfo = extraInfoOf(row['extra_info'], where);
  const dataSource = column(row, dataSourceColumn(dataSourceKey), where);
  if (typeof dataSource !== 'string' && typeof dataSource !== 'number') {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected ${dataSourceKey} to be the name of a data source, got ${show(dataSource)}`,
    );
  }
  return { dataSource: String(dataSource), groundTruth, extraInfo };
}

/** Of `reward_model`. @throws TroupeError INVALID_DATA */
export function groundTruthOf(reward: unknown, where: string): unknown {
  if (typeof reward === 'object' && reward !== null && 'ground_truth' in reward) return reward.ground_truth;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected reward_model to be an object with ground_truth, got ${show(reward)}`,
  );
}

/** `extra_info`; {} where there is none. @throws TroupeError INVALID_DATA */
export function extraInfoOf(given: unknown, where: string): Record<string, unknown> {
  const extraInfo = given ?? {};
  if (typeof extraInfo === 'object' && !Array.isArray(extraInfo)) return extraInfo as Record<string, unknown>;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected extra_info to be an object, got ${show(extraInfo)}`,
  );
}
