import { clamp, describeRows, SAFETY_BOUND, type ValidTokens } from './valid_tokens';

/**
 * How far the rollout's policy is from the trained one, from their log-probs of the valid tokens and the difference, [N] each: perplexities
 * (mean over sequences of e^(−mean log-prob)), KL(rollout ‖ train) by k1 and k3, χ² divergence per token and per
 * sequence. A sequence without a valid token counts with log-probs of 0, as in verl.
 */
export function offPolicyMetrics(
  tokens: ValidTokens,
  logProbs: Float64Array,
  rolloutLogProbs: Float64Array,
  logRatio: Float64Array,
): Record<string, number> {
  const training = tokens.rowMeans(logProbs);
  const rollout = tokens.rowMeans(rolloutLogProbs);
  const difference = describeRows(rollout.map((mean, i) => mean - (training[i] as number)));
  const overRows = (values: Float64Array): number => describeRows(values).mean;
  const bounded = (x: number): number => clamp(x, -SAFETY_BOUND, SAFETY_BOUND);
  return {
    training_ppl: overRows(training.map((mean) => Math.exp(-mean))),
    training_log_ppl: -overRows(training),
    kl: tokens.mean(logRatio, (lr) => -lr),
    k3_kl: tokens.mean(logRatio, (lr) => Math.exp(lr) - lr - 1),
    rollout_ppl: overRows(rollout.map((mean) => Math.exp(-mean))),
    rollout_log_ppl: -overRows(rollout),
    log_ppl_diff: difference.mean,
    log_ppl_abs_diff: overRows(rollout.map((mean, i) => Math.abs(mean - (training[i] as number)))),
    log_ppl_diff_max: difference.max,
    log_ppl_diff_min: difference.min,
    ppl_ratio: overRows(rollout.map((mean, i) => Math.exp(mean - (training[i] as number)))),
    chi2_token: tokens.mean(logRatio, (lr) => Math.exp(bounded(lr)) ** 2) - 1,
    chi2_seq: overRows(tokens.rowSums(logRatio).map((sum) => Math.exp(2 * bounded(sum)))) - 1,
  };
}
