import { deriveSeed } from '../base/seed';
import type { ResolvedConfig } from '../config/config';
import type { RewardManager } from '../reward/contract/types';
import { validationSampling } from '../roles/settings';
import type { DumpRow } from '../run/run_directory';
import type { Engines } from './engines';
import type { Metrics } from './metrics/metrics';
import { validationMetrics } from './metrics/validation_metrics';
import { type Decoder, dumpRows, generateResponses, type Prompt, scoreResponses } from './rollout';

export interface Validation {
  /** val-core/... and val-aux/...; see {@link validationMetrics}. */
  metrics: Metrics;
  rows: DumpRow[];
  /** Of each row. */
  dataSources: string[];
}

/** Answers every held-out prompt with `rollout.val_kwargs` (greedy by default) and scores the answers. */
export async function validate(
  context: { config: ResolvedConfig; engines: Engines; decoder: Decoder; reward: RewardManager },
  prompts: readonly Prompt[],
  step: number,
): Promise<Validation> {
  const { config, engines, decoder, reward } = context;
  engines.setPhase(`validation at step ${step}`);
  const sampling = validationSampling(config);
  const size = config.data.val_batch_size ?? prompts.length;
  const rows: DumpRow[] = [];
  // Of the batches themselves nothing is kept: they hold every token.
  const columns = { dataSource: [] as string[], uid: [] as unknown[], reward: [] as unknown[] };
  for (let start = 0; start < prompts.length; start += size) {
    const seed = deriveSeed(config.trainer.seed, 'validation', start);
    const part = prompts.slice(start, start + size);
    const batch = await generateResponses(engines.rollout, part, { ...sampling, seed }, `val-${start}`);
    const scored = await scoreResponses(batch, decoder, reward, engines.rewardModel);
    for (const [i, row] of dumpRows(step, scored).entries()) {
      rows.push(row);
      columns.dataSource.push(scored.batch.get('dataSource')[i] as string);
      columns.uid.push(scored.batch.get('uid')[i]);
      columns.reward.push(scored.batch.get('score')[i]);
    }
  }
  engines.setPhase(null);
  const extras = new Set<string>();
  for (const row of rows) for (const key of Object.keys(row)) extras.add(key);
  for (const key of ['step', 'input', 'output', 'gts', 'score', 'reward']) extras.delete(key);
  const variables: Record<string, unknown[]> = { reward: columns.reward };
  for (const key of extras) variables[key] = rows.map((row) => row[key]);
  const { dataSource: dataSources } = columns;
  return { metrics: validationMetrics(dataSources, columns.uid, variables), rows, dataSources };
}
