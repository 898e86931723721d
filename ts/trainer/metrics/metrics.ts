import { maskedMean, summary } from '../../algorithms/masked';
import { type NumberArray, rowSums } from '../../algorithms/ragged';
import type { Batch } from '../../batch/batch';

/** Metric name -> value, under verl's names (reference: `compute_data_metrics`, `compute_timing_metrics`). */
export type Metrics = Record<string, number>;

function addSummary(metrics: Metrics, name: string, values: NumberArray, mask?: NumberArray): void {
  const stats = summary(values, mask);
  if (!stats) return;
  metrics[`${name}/mean`] = stats.mean;
  metrics[`${name}/max`] = stats.max;
  metrics[`${name}/min`] = stats.min;
}

/** Unbiased variance over the mask; 0 with fewer than two entries. */
function variance(values: NumberArray, mask: NumberArray): number {
  let count = 0;
  let sum = 0;
  for (let i = 0; i < values.length; i++) {
    if (!mask[i]) continue;
    count++;
    sum += values[i] as number;
  }
  if (count < 2) return 0;
  const mean = sum / count;
  let squares = 0;
  for (let i = 0; i < values.length; i++) if (mask[i]) squares += ((values[i] as number) - mean) ** 2;
  return squares / (count - 1);
}

function addLengths(metrics: Metrics, name: string, lengths: NumberArray, limit: number): void {
  addSummary(metrics, name, lengths);
  if (lengths.length === 0) return;
  let clipped = 0;
  for (let i = 0; i < lengths.length; i++) if ((lengths[i] as number) >= limit) clipped++;
  metrics[`${name}/clip_ratio`] = clipped / lengths.length;
}

/** Sequence columns that conversations with tools have, and the metrics of them. */
const TURN_COLUMNS = [
  ['numTurns', 'num_turns'],
  ['numToolCalls', 'tool_call_counts'],
] as const;

/**
 * critic/{score,rewards,advantages,returns,values}/*, critic/vf_explained_var, response_length/*, prompt_length/* of a
 * batch with tokenScores, tokenRewards, advantages, returns and, with a critic, values. Scores and rewards leave
 * out aborted (empty) responses; response lengths include tool tokens; clip_ratio is the share at the limit. num_turns/* and
 * tool_call_counts/* when the batch has the sequence columns numTurns and numToolCalls.
 */
export function dataMetrics(batch: Batch, limits: { prompt: number; response: number }): Metrics {
  const metrics: Metrics = {};
  const mask = batch.get('responseMask');
  const lengths = batch.responseLens;
  const answered = lengths.map((length) => (length > 0 ? 1 : 0));
  addSummary(metrics, 'critic/score', rowSums(batch.get('tokenScores'), batch.responseOffsets), answered);
  addSummary(metrics, 'critic/rewards', rowSums(batch.get('tokenRewards'), batch.responseOffsets), answered);
  addSummary(metrics, 'critic/advantages', batch.get('advantages'), mask);
  addSummary(metrics, 'critic/returns', batch.get('returns'), mask);
  if (batch.has('values')) {
    const values = batch.get('values');
    const returns = batch.get('returns');
    addSummary(metrics, 'critic/values', values, mask);
    const errors = Float64Array.from(returns, (value, t) => value - (values[t] as number));
    metrics['critic/vf_explained_var'] = 1 - variance(errors, mask) / (variance(returns, mask) + 1e-5);
  }
  addLengths(metrics, 'response_length', lengths, limits.response);
  addLengths(
    metrics,
    'response_length_non_aborted',
    lengths.filter((length) => length > 0),
    limits.response,
  );
  metrics['response/aborted_ratio'] =
    lengths.filter((length) => length === 0).length / Math.max(lengths.length, 1);
  addLengths(metrics, 'prompt_length', batch.promptLens, limits.prompt);
  for (const [column, name] of TURN_COLUMNS) {
    if (batch.has(column)) addSummary(metrics, name, batch.get(column) as NumberArray);
  }
  return metrics;
}

/**
 * How far the trainer's probabilities of the sampled tokens are from those of the rollout:
 * training/rollout_probs_diff_{max,mean,std} of |exp(old) - exp(rollout)| and their Pearson correlation.
 */
export function rolloutDifference(batch: Batch): Metrics {
  const mask = batch.get('responseMask');
  const rollout = Float64Array.from(batch.get('rolloutLogProbs'), Math.exp);
  const actor = Float64Array.from(batch.get('oldLogProbs'), Math.exp);
  const difference = actor.map((probability, t) => Math.abs(probability - (rollout[t] as number)));
  const stats = summary(difference, mask);
  if (!stats) return {};
  const metrics: Metrics = {
    'training/rollout_probs_diff_max': stats.max,
    'training/rollout_probs_diff_mean': stats.mean,
    'training/rollout_probs_diff_std': Math.sqrt(variance(difference, mask)),
  };
  const [meanRollout, meanActor] = [maskedMean(rollout, mask), maskedMean(actor, mask)];
  const scale = Math.sqrt(variance(rollout, mask) * variance(actor, mask));
  if (scale > 0) {
    let products = 0;
    let count = 0;
    for (let t = 0; t < actor.length; t++) {
      if (!mask[t]) continue;
      products += ((rollout[t] as number) - meanRollout) * ((actor[t] as number) - meanActor);
      count++;
    }
    metrics['training/rollout_actor_probs_pearson_corr'] = products / (count - 1) / scale;
  }
  return metrics;
}

/** Mean, maximum and minimum of the numbers (and booleans) a reward function returned besides the score: reward/{key}/*. */
export function rewardExtraMetrics(extras: Record<string, unknown[]>): Metrics {
  const metrics: Metrics = {};
  for (const [key, column] of Object.entries(extras)) {
    const numbers = column.filter((v) => typeof v === 'number' || typeof v === 'boolean').map(Number);
    addSummary(metrics, `reward/${key}`, numbers);
  }
  return metrics;
}

/** Wall-clock seconds of named phases; a phase that runs twice adds up. */
export class PhaseTimer {
  private readonly seconds = new Map<string, number>();

  async time<T>(phase: string, work: () => Promise<T> | T): Promise<T> {
    const start = performance.now();
    try {
      return await work();
    } finally {
      this.seconds.set(phase, (this.seconds.get(phase) ?? 0) + (performance.now() - start) / 1000);
    }
  }

  get(phase: string): number | undefined {
    return this.seconds.get(phase);
  }

  /** timing_s/{phase} */
  metrics(): Metrics {
    return Object.fromEntries([...this.seconds].map(([phase, s]) => [`timing_s/${phase}`, s]));
  }
}

const PER_TOKEN_PHASES = ['gen', 'ref', 'values', 'adv', 'update_critic', 'update_actor'];

/**
 * timing_s/*, timing_per_token_ms/* (gen: per generated token, which dynamic sampling makes more than the batch has; others: per
 * token of the batch) and perf/* of one step.
 */
export function timingMetrics(
  timer: PhaseTimer,
  batch: Batch,
  worldSize: number,
  generatedTokens = batch.numResponseTokens,
): Metrics {
  const metrics = timer.metrics();
  for (const phase of PER_TOKEN_PHASES) {
    const seconds = timer.get(phase);
    const tokens = phase === 'gen' ? generatedTokens : batch.numTokens;
    if (seconds !== undefined && tokens > 0)
      metrics[`timing_per_token_ms/${phase}`] = (1000 * seconds) / tokens;
  }
  const step = timer.get('step') ?? 0;
  metrics['perf/total_num_tokens'] = batch.numTokens;
  metrics['perf/time_per_step'] = step;
  if (step > 0) metrics['perf/throughput'] = batch.numTokens / (step * worldSize);
  return metrics;
}
