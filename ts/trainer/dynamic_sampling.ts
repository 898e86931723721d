// DAPO's dynamic sampling (Yu et al. 2025, arXiv 2503.14476): a prompt whose responses all earn the same teaches a group
// estimator nothing, so further prompts take its place.
import { trajectoryRows } from '../agent/trajectory/trajectory_batch';
import { groupByUid, type NumberArray } from '../algorithms/ragged';
import { responseTotals, tokenlessScores } from '../algorithms/response_totals';
import type { Batch } from '../batch/batch';
import { TroupeError } from '../errors';
import type { RewardManagerOptions } from '../reward/contract/types';
import type { Metrics } from './metrics/metrics';
import { rewardColumn } from './reward_columns';
import { concatScored, type Prompt, type Scored, takeScored } from './rollout';

/** Prompts of one generation batch and their scored responses, n per prompt, in the order of the prompts. */
export interface Generation {
  prompts: Prompt[];
  /** Of the data, counted from 0. */
  epoch: number;
  scored: Scored;
}

export interface MetricOptions {
  /** `algorithm.filter_groups.metric`: seq_reward, seq_final_reward, or what the reward function returns. */
  metric: string;
  onError: RewardManagerOptions['onError'];
}

export interface DynamicSamplingOptions extends MetricOptions {
  /** Prompts that the step trains on. */
  wanted: number;
  /** Generation batches before giving up; 0: no limit. */
  maxGenBatches: number;
  /** Generation batches of one pass over the data: when so many in a row leave nothing, none ever will. */
  batchesPerEpoch: number;
}

export interface Sampled extends Generation {
  /** train/*, training/filter_groups/*; see docs/metrics.md. */
  metrics: Metrics;
  /** Response tokens of all generation batches. */
  generatedTokens: number;
}

/**
 * Generates until `wanted` prompts have responses that differ in the metric, and keeps the first `wanted` of them. `generate`
 * makes generation batch 0, 1, ... of the step. A prompt with a single response is always kept, as in verl.
 * @throws TroupeError INVALID_DATA when `maxGenBatches` batches, or a whole epoch without one such prompt, do not suffice
 */
export async function sampleGroups(
  generate: (index: number) => Promise<Generation>,
  options: DynamicSamplingOptions,
): Promise<Sampled> {
  const { wanted, maxGenBatches, batchesPerEpoch } = options;
  const kept: { prompts: Prompt[]; scored: Scored }[] = [];
  const all = { batches: 0, prompts: 0, kept: 0, tokens: 0, responses: 0, score: 0 };
  let fruitless = 0;
  let epoch = 0;
  while (all.kept < wanted) {
    if (maxGenBatches > 0 && all.batches >= maxGenBatches) throw tooFew(all, options, 'max_num_gen_batches');
    if (fruitless >= Math.max(batchesPerEpoch, 1)) throw tooFew(all, options, 'a whole epoch');
    const generation = await generate(all.batches);
    const { batch, rewards } = generation.scored;
    const { responses, groups } = groupsOf(generation.scored, options);
    const firsts = responses.map(({ start }) => start);
    fruitless = groups.length === 0 ? fruitless + 1 : 0;
    kept.push({
      prompts: groups.map(({ index }) => generation.prompts[index] as Prompt),
      scored: takeScored(
        generation.scored,
        groups.flatMap(({ members }) => members.flatMap((k) => rowsOf(responses[k] as Rows))),
      ),
    });
    // What was kept is a copy.
    batch.recycle();
    epoch = generation.epoch;
    all.batches++;
    all.prompts += generation.prompts.length;
    all.kept += groups.length;
    all.tokens += batch.numResponseTokens;
    all.responses += responses.length;
    all.score += firsts.reduce((sum, row) => sum + (rewards.scores[row] as number), 0);
  }
  return {
    ...truncated(kept, wanted),
    epoch,
    generatedTokens: all.tokens,
    metrics: {
      'train/num_gen_batches': all.batches,
      'train/num_gen_prompts': all.prompts,
      'train/kept_prompt_ratio': all.kept / all.prompts,
      'train/gen_score_mean': all.score / all.responses,
      'training/filter_groups/evicted_samples': all.prompts - all.kept,
      'training/filter_groups/discarded_surplus_samples': all.kept - wanted,
    },
  };
}

/** Whether the responses to one prompt teach something: they differ in the metric, or there is one alone. */
export const differs = (scored: Scored, options: MetricOptions): boolean =>
  groupsOf(scored, options).groups.length > 0;

/** The responses of a batch, and the prompts whose responses differ. */
function groupsOf(
  scored: Scored,
  options: MetricOptions,
): { responses: Rows[]; groups: ReturnType<typeof groupsThatDiffer> } {
  const responses = wholeResponses(scored.batch);
  const uid = scored.batch.get('uid') as unknown[];
  const groups = groupsThatDiffer(
    metricOf(scored, responses, options),
    responses.map(({ start }) => uid[start]),
  );
  return { responses, groups };
}

/** Responses are compared by value: a standard deviation computed in floating point is not always 0 for equal numbers. */
export function groupsThatDiffer(
  values: NumberArray,
  uid: ArrayLike<unknown>,
): { index: number; members: number[] }[] {
  return groupByUid(uid, values.length)
    .members.map((members, index) => ({ index, members }))
    .filter(
      ({ members }) =>
        members.length === 1 || members.some((i) => values[i] !== values[members[0] as number]),
    );
}

/** First and last + 1 row of a response. */
interface Rows {
  start: number;
  end: number;
}

const rowsOf = ({ start, end }: Rows): number[] => Array.from({ length: end - start }, (_, i) => start + i);

/** A trajectory is one response to its prompt, however many sequences it became. */
function wholeResponses(batch: Batch): Rows[] {
  if (batch.has('trajectory')) return trajectoryRows(batch);
  return Array.from({ length: batch.size }, (_, start) => ({ start, end: start + 1 }));
}

function metricOf(
  scored: Scored,
  responses: readonly Rows[],
  { metric, onError }: MetricOptions,
): NumberArray {
  // Without a KL in the reward, which the configuration refuses here, the final rewards are the scores.
  if (metric === 'seq_reward' || metric === 'seq_final_reward') {
    const { batch } = scored;
    const offsets = [0, ...responses.map(({ end }) => batch.responseOffsets[end] as number)];
    const scores = tokenlessScores(batch);
    return responseTotals(
      batch.get('tokenScores'),
      offsets,
      scores && responses.map(({ start }) => scores[start] as number),
    );
  }
  // Every row of a trajectory has what its reward function returned.
  const column = rewardColumn(scored, metric, 'algorithm.filter_groups.metric', onError);
  return responses.map(({ start }) => column[start] as number);
}

function truncated(
  kept: readonly { prompts: Prompt[]; scored: Scored }[],
  wanted: number,
): { prompts: Prompt[]; scored: Scored } {
  const scored = concatScored(kept.map((part) => part.scored));
  const groups = groupByUid(scored.batch.get('uid') as unknown[], scored.batch.size).members;
  const rows = groups.slice(0, wanted).flat();
  return { prompts: kept.flatMap((part) => part.prompts).slice(0, wanted), scored: takeScored(scored, rows) };
}

export function tooFew(
  all: { batches: number; prompts: number; kept: number },
  { wanted, metric, maxGenBatches }: Pick<DynamicSamplingOptions, 'wanted' | 'metric' | 'maxGenBatches'>,
  limit: 'max_num_gen_batches' | 'a whole epoch',
): TroupeError {
  const reason =
    limit === 'a whole epoch'
      ? 'and none of the last pass over the data'
      : `and algorithm.filter_groups.max_num_gen_batches is ${maxGenBatches}`;
  return new TroupeError(
    'INVALID_DATA',
    `[dynamic sampling] expected ${wanted} prompts whose responses differ in ${metric}, but of ${all.prompts} prompts in ` +
      `${all.batches} generation batches only ${all.kept} are such, ${reason}: the prompts are too easy or too hard for the policy, ` +
      'or the reward is constant; use other prompts, more responses (rollout.n), or a larger limit (0: none)',
  );
}
