import { summary } from '../../algorithms/masked';
import { type NumberArray, rowSums } from '../../algorithms/ragged';
import type { Batch } from '../../batch/batch';

/** verl's `masked_mean` adds it to the count. */
const MEAN_EPSILON = 1e-8;

/** Metric name -> value, under verl's names (reference: `compute_data_metrics`, `compute_timing_metrics`). */
export type Metrics = Record<string, number>;

/** {name}/{mean,max,min} of the values where the mask is not 0; none of none. */
export function addSummary(metrics: Metrics, name: string, values: NumberArray, mask?: NumberArray): void {
  const stats = summary(values, mask);
  if (!stats) return;
  metrics[`${name}/mean`] = stats.mean;
  metrics[`${name}/max`] = stats.max;
  metrics[`${name}/min`] = stats.min;
}

/** Unbiased variance of `value` at each entry of the mask; null with fewer than two entries. Nothing is stored: a batch may be large. */
function variance(value: (i: number) => number, mask: NumberArray): number | null {
  let count = 0;
  let sum = 0;
  for (let i = 0; i < mask.length; i++) {
    if (!mask[i]) continue;
    count++;
    sum += value(i);
  }
  if (count < 2) return null;
  const mean = sum / count;
  let squares = 0;
  for (let i = 0; i < mask.length; i++) if (mask[i]) squares += (value(i) - mean) ** 2;
  return squares / (count - 1);
}

function addLengths(metrics: Metrics, name: string, lengths: NumberArray, limit: number): void {
  addSummary(metrics, name, lengths);
  if (lengths.length === 0) return;
  let clipped = 0;
  for (let i = 0; i < lengths.length; i++) if ((lengths[i] as number) >= limit) clipped++;
  metrics[`${name}/clip_ratio`] = clipped / lengths.length;
}

/** Sequence columns that conversations with tools have, and the metrics of them; verl's trainers differ in the name of one. */
const TURN_COLUMNS = [
  ['numTurns', 'num_turns'],
  ['numTurns', 'training/num_turns'],
  ['numToolCalls', 'tool_call_counts'],
] as const;

/**
 * critic/{score,rewards,advantages,returns,values}/*, critic/vf_explained_var, response_length/*, prompt_length/* of a
 * batch with tokenScores, tokenRewards, advantages, returns and, with a critic, values. Scores and rewards leave
 * out aborted (empty) responses; response lengths include tool tokens; clip_ratio is the share at the limit. num_turns/*, training/num_turns/* and
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
    const errors = variance((t) => (returns[t] as number) - (values[t] as number), mask);
    const spread = variance((t) => returns[t] as number, mask);
    if (errors !== null && spread !== null) metrics['critic/vf_explained_var'] = 1 - errors / (spread + 1e-5);
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
  const [rolloutLogProbs, oldLogProbs] = [batch.get('rolloutLogProbs'), batch.get('oldLogProbs')];
  let count = 0;
  let max = Number.NEGATIVE_INFINITY;
  const sum = { difference: 0, rollout: 0, actor: 0 };
  // Two passes take each exponential twice: columns of doubles would be larger than the batch.
  for (let t = 0; t < mask.length; t++) {
    if (!mask[t]) continue;
    const [p, q] = [Math.exp(rolloutLogProbs[t] as number), Math.exp(oldLogProbs[t] as number)];
    const difference = Math.abs(q - p);
    if (difference > max || Number.isNaN(difference)) max = difference;
    count++;
    sum.difference += difference;
    sum.rollout += p;
    sum.actor += q;
  }
  if (count === 0) return {};
  const centre = (total: number): number => total / (count + MEAN_EPSILON);
  const mean = { difference: sum.difference / count, rollout: sum.rollout / count, actor: sum.actor / count };
  const [rolloutCentre, actorCentre] = [centre(sum.rollout), centre(sum.actor)];
  const squares = { difference: 0, rollout: 0, actor: 0 };
  let products = 0;
  for (let t = 0; t < mask.length; t++) {
    if (!mask[t]) continue;
    const [p, q] = [Math.exp(rolloutLogProbs[t] as number), Math.exp(oldLogProbs[t] as number)];
    squares.difference += (Math.abs(q - p) - mean.difference) ** 2;
    squares.rollout += (p - mean.rollout) ** 2;
    squares.actor += (q - mean.actor) ** 2;
    products += (p - rolloutCentre) * (q - actorCentre);
  }
  const variance = (total: number): number => (count < 2 ? 0 : total / (count - 1));
  const metrics: Metrics = {
    'training/rollout_probs_diff_max': max,
    'training/rollout_probs_diff_mean': mean.difference,
    'training/rollout_probs_diff_std': Math.sqrt(variance(squares.difference)),
  };
  const scale = Math.sqrt(variance(squares.rollout) * variance(squares.actor));
  if (scale > 0) metrics['training/rollout_actor_probs_pearson_corr'] = products / (count - 1) / scale;
  return metrics;
}

/** Mean, maximum and minimum of the numbers (and booleans) a reward function returned besides the score: reward/{key}/*. */
export function rewardExtraMetrics(extras: Record<string, unknown[]>): Metrics {
  const metrics: Metrics = {};
  for (const [key, column] of Object.entries(extras)) {
    // critic/score/* are these.
    if (key === 'score') continue;
    const numbers = column.filter((v) => typeof v === 'number' || typeof v === 'boolean').map(Number);
    addSummary(metrics, `reward/${key}`, numbers);
  }
  return metrics;
}

/** Wall-clock seconds of named phases; a phase that runs twice adds up. */
export class PhaseTimer {
  private readonly seconds = new Map<string, number>();
  /** Every phase that is over, each time that it ran; milliseconds of performance.now(). */
  readonly intervals: { name: string; start: number; end: number }[] = [];

  async time<T>(phase: string, work: () => Promise<T> | T): Promise<T> {
    const start = performance.now();
    try {
      return await work();
    } finally {
      const end = performance.now();
      this.intervals.push({ name: phase, start, end });
      this.seconds.set(phase, (this.seconds.get(phase) ?? 0) + (end - start) / 1000);
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

const PER_TOKEN_PHASES = ['gen', 'ref', 'teacher', 'values', 'adv', 'update_critic', 'update_actor'];

/**
 * timing_s/*, timing_per_token_ms/* (gen: per generated token, which dynamic sampling makes more than the batch has; others: per
 * token of the batch) and perf/* of one step.
 */
export function timingMetrics(
  timer: PhaseTimer,
  batch: Pick<Batch, 'numTokens' | 'numResponseTokens'>,
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
