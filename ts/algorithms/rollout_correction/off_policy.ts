// How far the rollout's policy is from the trained one, in one pass over the tokens: a batch has hundreds of millions of them, and lists of doubles of
// them would take more memory than its columns.
import type { CorrectionInputs } from './rollout_correction';
import { clamp, describeRows, MEAN_EPSILON, SAFETY_BOUND } from './valid_tokens';

/**
 * From the log-probs of the `count` valid tokens under both policies: perplexities (mean over sequences of e^(−mean log-prob)), KL(rollout ‖ train) by
 * k1 and k3, χ² divergence per token and per sequence. A sequence without a valid token counts with log-probs of 0, as in verl.
 */
export function offPolicyMetrics(inputs: CorrectionInputs, count: number): Record<string, number> {
  const { offsets, responseMask, logProbs, rolloutLogProbs } = inputs;
  const rows = offsets.length - 1;
  const bounded = (x: number): number => clamp(x, -SAFETY_BOUND, SAFETY_BOUND);
  const [training, rollout, logRatios] = [rows, rows, rows].map((size) => new Float64Array(size)) as [
    Float64Array,
    Float64Array,
    Float64Array,
  ];
  let [k1, k3, chi2] = [0, 0, 0];
  for (let i = 0; i < rows; i++) {
    let [valid, trained, sampled, ratios] = [0, 0, 0, 0];
    for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++) {
      if (!responseMask[t]) continue;
      const [lp, rlp] = [logProbs[t] as number, rolloutLogProbs[t] as number];
      const lr = lp - rlp;
      valid++;
      trained += lp;
      sampled += rlp;
      ratios += lr;
      k1 += -lr;
      k3 += Math.exp(lr) - lr - 1;
      chi2 += Math.exp(bounded(lr)) ** 2;
    }
    training[i] = trained / (valid + MEAN_EPSILON);
    rollout[i] = sampled / (valid + MEAN_EPSILON);
    logRatios[i] = ratios;
  }
  const overTokens = (sum: number): number => sum / (count + MEAN_EPSILON);
  const overRows = (values: Float64Array): number => describeRows(values).mean;
  const difference = describeRows(rollout.map((mean, i) => mean - (training[i] as number)));
  return {
    training_ppl: overRows(training.map((mean) => Math.exp(-mean))),
    training_log_ppl: -overRows(training),
    kl: overTokens(k1),
    k3_kl: overTokens(k3),
    rollout_ppl: overRows(rollout.map((mean) => Math.exp(-mean))),
    rollout_log_ppl: -overRows(rollout),
    log_ppl_diff: difference.mean,
    log_ppl_abs_diff: overRows(rollout.map((mean, i) => Math.abs(mean - (training[i] as number)))),
    log_ppl_diff_max: difference.max,
    log_ppl_diff_min: difference.min,
    ppl_ratio: overRows(rollout.map((mean, i) => Math.exp(mean - (training[i] as number)))),
    chi2_token: overTokens(chi2) - 1,
    chi2_seq: overRows(logRatios.map((sum) => Math.exp(2 * bounded(sum)))) - 1,
  };
}
