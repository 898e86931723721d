import type {
  PolicyLossFunctionInputs,
  PolicyLossFunctionResult,
} from '../../ts/algorithms/policy_losses/registry';

/** PPO with dual clip, times the rollout's importance weights, written from the formula. */
export function vanillaInTypeScript(inputs: PolicyLossFunctionInputs): PolicyLossFunctionResult {
  const { logProbs, oldLogProbs, advantages, rolloutIsWeights, options } = inputs;
  const loss = new Float64Array(logProbs.length);
  const gradLogProbs = new Float64Array(logProbs.length);
  for (let t = 0; t < loss.length; t++) {
    const advantage = advantages[t] as number;
    const weight = rolloutIsWeights?.[t] ?? 1;
    const ratio = Math.exp((logProbs[t] as number) - (oldLogProbs[t] as number));
    const clipped = Math.max(1 - options.clipRatioLow, Math.min(ratio, 1 + options.clipRatioHigh));
    let value = Math.max(-advantage * ratio, -advantage * clipped);
    let slope = -advantage * ratio >= -advantage * clipped ? -advantage * ratio : 0;
    if (advantage < 0 && value > -advantage * options.clipRatioC) {
      value = -advantage * options.clipRatioC;
      slope = 0;
    }
    loss[t] = weight * value;
    gradLogProbs[t] = weight * slope;
  }
  return { loss, gradLogProbs, metrics: { mine: 7, 'own/loss_max': 3 } };
}
