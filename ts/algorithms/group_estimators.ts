// Estimators that give each sequence one number, from its total reward and those of its group (the
// sequences of one prompt). A reward on a masked token counts: the total runs over all response tokens.
import { TroupeError } from '../errors';
import { type AdvantageConfig, type AdvantageInputs, requireColumn } from './advantage_types';
import { Moments } from './moments';
import { groupByUid, rowSums } from './ragged';
import { responseTotals } from './response_totals';

/** One advantage per sequence, [B]. */
export type SequenceEstimator = (inputs: AdvantageInputs, config: AdvantageConfig) => Float64Array;

const STD_EPSILON = 1e-6;

interface GroupStatistics {
  mean: number;
  /** Unbiased (n-1). */
  std: number;
}

// Means are taken over differences from the group's first score: equal scores, such as eight times 0.1, have that very mean, so that
// their advantages are exactly 0.

function statistics(scores: Float64Array, members: number[]): GroupStatistics {
  const first = scores[members[0] as number] as number;
  let sum = 0;
  for (const i of members) sum += (scores[i] as number) - first;
  const mean = first + sum / members.length;
  let squares = 0;
  for (const i of members) squares += ((scores[i] as number) - mean) ** 2;
  return { mean, std: Math.sqrt(squares / (members.length - 1)) };
}

/** Σ mask per sequence, [B]. */
function lengths(inputs: AdvantageInputs): Float64Array {
  return rowSums(inputs.responseMask, inputs.offsets);
}

/** `scores` [B], one number for all tokens of a sequence, whitened over the policy tokens of the batch; [B]. */
function whitenSequences(scores: Float64Array, inputs: AdvantageInputs): Float64Array {
  const tokens = lengths(inputs);
  const moments = new Moments();
  scores.forEach((score, i) => {
    moments.add(tokens[i] as number, score, 0, 0);
  });
  const { mean, scale } = moments.whitening();
  return scores.map((score) => (score - mean) * scale);
}

/** Total reward of each sequence, [B]. One NaN would reach every response of its group, or of the batch. */
function totalRewards({ tokenRewards, offsets, score }: AdvantageInputs): Float64Array {
  return finite(responseTotals(tokenRewards, offsets, score), 'its token rewards add up to');
}

function finite(scores: Float64Array, what: string): Float64Array {
  const bad = scores.findIndex((score) => !Number.isFinite(score));
  if (bad < 0) return scores;
  throw new TroupeError(
    'NON_FINITE',
    `[advantages] expected finite rewards but sequence ${bad} has none: ${what} ${scores[bad]}`,
  );
}

/** [B]: `visit` fills in the entries of one group after another; `scores` [B] are total rewards. */
function perGroup(
  inputs: AdvantageInputs,
  visit: (members: number[], scores: Float64Array, out: Float64Array) => void,
): Float64Array {
  const scores = totalRewards(inputs);
  const out = new Float64Array(scores.length);
  for (const members of groupByUid(inputs.uid, scores.length).members) visit(members, scores, out);
  return out;
}

function normalise(members: number[], scores: Float64Array, out: Float64Array, byStd: boolean): void {
  // A group of one has no statistics: mean 0 and deviation 1, so its reward passes through.
  const { mean, std } = members.length === 1 ? { mean: 0, std: 1 } : statistics(scores, members);
  for (const i of members) {
    const centred = (scores[i] as number) - mean;
    out[i] = byStd ? centred / (std + STD_EPSILON) : centred;
  }
}

/** GRPO (Shao et al. 2024, arXiv 2402.03300): (s - μ) / (σ + 1e-6) in the group; Dr.GRPO (2503.20783): s - μ. */
export const grpo: SequenceEstimator = (inputs, config) =>
  perGroup(inputs, (members, scores, out) =>
    normalise(members, scores, out, config.normAdvByStdInGrpo ?? true),
  );

/** Pass@k form of GRPO (arXiv 2503.19595): only the best answer of a group gets best - second best. */
export const grpoPassk: SequenceEstimator = (inputs, config) =>
  perGroup(inputs, (members, scores, out) => {
    if (members.length < 2) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        "[advantages] 'grpo_passk' needs at least 2 responses per prompt but one prompt has 1: " +
          'set actor_rollout_ref.rollout.n to 2 or more',
      );
    }
    let best = members[0] as number;
    for (const i of members) if ((scores[i] as number) > (scores[best] as number)) best = i;
    let second = Number.NEGATIVE_INFINITY;
    for (const i of members) if (i !== best) second = Math.max(second, scores[i] as number);
    const gap = (scores[best] as number) - second;
    const byStd = config.normAdvByStdInGrpo ?? true;
    out[best] = byStd ? gap / (statistics(scores, members).std + STD_EPSILON) : gap;
  });

/** RLOO (Ahmadian et al. 2024, arXiv 2402.14740): the baseline of a response is the mean of the others. */
const leaveOneOut =
  (singleton: (score: number) => number): SequenceEstimator =>
  (inputs) =>
    perGroup(inputs, (members, scores, out) => {
      const n = members.length;
      const first = scores[members[0] as number] as number;
      let sum = 0;
      for (const i of members) sum += (scores[i] as number) - first;
      for (const i of members) {
        const score = scores[i] as number;
        out[i] = n === 1 ? singleton(score) : (n * (score - first) - sum) / (n - 1);
      }
    });

/** A group of one keeps its raw reward, as verl's `rloo`. */
export const rloo = leaveOneOut((score) => score);

/** A group of one gets 0, as verl's `rloo_vectorized`. */
export const rlooVectorized = leaveOneOut(() => 0);

/** OPO (Hao et al. 2025, arXiv 2505.23585): the group's length-weighted mean reward as baseline. */
export const opo: SequenceEstimator = (inputs) => {
  const tokens = lengths(inputs);
  return perGroup(inputs, (members, scores, out) => {
    const first = scores[members[0] as number] as number;
    let weight = 0;
    let weighted = 0;
    for (const i of members) {
      weight += tokens[i] as number;
      weighted += (tokens[i] as number) * ((scores[i] as number) - first);
    }
    const baseline = members.length === 1 || weight === 0 ? 0 : first + weighted / weight;
    for (const i of members) out[i] = (scores[i] as number) - baseline;
  });
};

/** GPG (Chu et al. 2025, arXiv 2504.02546): α (s - μ) with α = B / number of non-zero rewards, no deviation. */
export const gpg: SequenceEstimator = (inputs, config) => {
  const scores = totalRewards(inputs);
  let nonZero = 0;
  for (const score of scores) if (score !== 0) nonZero++;
  const alpha = scores.length / Math.max(nonZero, 1) / (config.gpgFNorm ?? 1);
  return perGroup(inputs, (members, s, out) => {
    normalise(members, s, out, false);
    for (const i of members) out[i] = (out[i] as number) * alpha;
  });
};

/** REINFORCE++-baseline (Hu et al. 2025, arXiv 2501.03262): s - group mean, whitened over the batch's tokens. */
export const reinforcePlusPlusBaseline: SequenceEstimator = (inputs) => {
  const centred = perGroup(inputs, (members, scores, out) => normalise(members, scores, out, false));
  return whitenSequences(centred, inputs);
};

/**
 * EGPO (arXiv 2508.05118): the GRPO advantage plus a bonus for uncertain responses,
 * A + λ clip(H, ±|A|/α), H the mean token entropy of the response; the sign of A never flips for λ < α.
 */
export const egpo: SequenceEstimator = (inputs, config) => {
  const entropy = requireColumn(inputs, 'entropy', 'egpo');
  const { offsets, responseMask } = inputs;
  const lambda = config.egpoLambda ?? 0.4;
  const alpha = config.egpoAlpha ?? 2;
  return grpo(inputs, config).map((advantage, i) => {
    let sum = 0;
    let count = 0;
    for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++) {
      if (!responseMask[t]) continue;
      sum += entropy[t] as number;
      count++;
    }
    const bound = Math.abs(advantage) / alpha;
    const bonus = Math.max(Math.min(sum / (count + 1e-8), bound), -bound);
    return advantage + lambda * bonus;
  });
};

/** GDPO (arXiv 2601.05242): GRPO per reward name, weighted sum, whitened over the batch's tokens. */
export const gdpo: SequenceEstimator = (inputs, config) => {
  const components = requireColumn(inputs, 'rewardComponents', 'gdpo');
  const keys = config.gdpoRewardKeys ?? Object.keys(components);
  const weights = config.gdpoRewardWeights ?? keys.map(() => 1);
  if (keys.length === 0 || weights.length !== keys.length) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `[advantages] 'gdpo' expects one weight per reward name but got ${keys.length} names and ${weights.length} weights`,
    );
  }
  const rows = inputs.offsets.length - 1;
  const total = new Float64Array(rows);
  const { members } = groupByUid(inputs.uid, rows);
  keys.forEach((key, k) => {
    const column = components[key];
    if (!column) {
      throw new TroupeError(
        'INVALID_ARGUMENT',
        `[advantages] 'gdpo' expects the reward '${key}' but the reward function returned only: ${Object.keys(components).join(', ')}`,
      );
    }
    const scores = finite(Float64Array.from(column), `'${key}' is`);
    const normalised = new Float64Array(rows);
    for (const group of members) normalise(group, scores, normalised, config.normAdvByStdInGrpo ?? true);
    for (let i = 0; i < rows; i++)
      total[i] = (total[i] as number) + (weights[k] as number) * (normalised[i] as number);
  });
  return whitenSequences(total, inputs);
};
