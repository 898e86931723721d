import { trajectoryRows } from '../agent/trajectory/trajectory_batch';
import { deriveSeed } from '../base/seed';
import type { ResolvedConfig } from '../config/config';
import type { RewardManager } from '../reward/contract/types';
import { validationSampling } from '../roles/settings';
import type { SamplingOptions } from '../rollout/sampling';
import type { DumpRow } from '../run/run_directory';
import { type AgentRollout, collectBatch, scoreTrajectories } from './agent_rollout';
import type { Engines } from './engines';
import { addSummary, type Metrics } from './metrics/metrics';
import { validationMetrics } from './metrics/validation_metrics';
import {
  type Decoder,
  dumpRows,
  generateResponses,
  type Prompt,
  type Scored,
  scoreResponses,
} from './rollout';

export interface Validation {
  /** val-core/... and val-aux/...; see {@link validationMetrics}. */
  metrics: Metrics;
  rows: DumpRow[];
  /** Of each row. */
  dataSources: string[];
}

export interface ValidationContext {
  config: ResolvedConfig;
  engines: Engines;
  decoder: Decoder;
  agents: AgentRollout | null;
  reward: RewardManager;
}

async function answer(
  { engines, decoder, agents, reward }: ValidationContext,
  prompts: readonly Prompt[],
  sampling: SamplingOptions,
  uid: string,
): Promise<Scored> {
  const { rollout, rewardModel } = engines;
  if (agents === null) {
    const batch = await generateResponses(rollout, prompts, sampling, uid);
    return await scoreResponses(batch, decoder, reward, rewardModel);
  }
  const { batch, trajectories } = await collectBatch(agents, rollout, prompts, sampling, uid, true);
  return await scoreTrajectories({ batch, trajectories: trajectories ?? [] }, decoder, reward, rewardModel);
}

/** Answers every held-out prompt with `rollout.val_kwargs` (greedy by default) and scores the answers. */
export async function validate(
  context: ValidationContext,
  prompts: readonly Prompt[],
  step: number,
): Promise<Validation> {
  const { config, engines } = context;
  engines.setPhase(`validation at step ${step}`);
  const sampling = validationSampling(config);
  const size = config.data.val_batch_size ?? prompts.length;
  const rows: DumpRow[] = [];
  // Of the batches themselves nothing is kept: they hold every token.
  const columns = {
    dataSource: [] as string[],
    uid: [] as unknown[],
    reward: [] as unknown[],
    score: [] as unknown[],
  };
  for (let start = 0; start < prompts.length; start += size) {
    const seed = deriveSeed(config.trainer.seed, 'validation', start);
    const part = prompts.slice(start, start + size);
    const scored = await answer(context, part, { ...sampling, seed }, `val-${start}`);
    const { batch } = scored;
    const shown = batch.has('trajectory') ? trajectoryRows(batch).map((one) => one.start) : null;
    for (const [k, row] of dumpRows(step, scored).entries()) {
      const i = shown?.[k] ?? k;
      rows.push(row);
      columns.dataSource.push(batch.get('dataSource')[i] as string);
      columns.uid.push(batch.get('uid')[i]);
      columns.reward.push(batch.get('score')[i]);
      columns.score.push(scored.rewards.extras['score']?.[i]);
    }
    batch.recycle();
  }
  engines.setPhase(null);
  const extras = new Set<string>();
  for (const row of rows) for (const key of Object.keys(row)) extras.add(key);
  for (const key of ['step', 'input', 'output', 'gts', 'score', 'reward']) extras.delete(key);
  const variables: Record<string, unknown[]> = Object.create(null);
  Object.assign(variables, { reward: columns.reward, score: columns.score });
  for (const key of extras) variables[key] = rows.map((row) => row[key]);
  const { dataSource: dataSources } = columns;
  const metrics = validationMetrics(dataSources, columns.uid, variables);
  if (context.agents) addSummary(metrics, 'val-aux/num_turns', variables['num_turns'] as number[]);
  return { metrics, rows, dataSources };
}
