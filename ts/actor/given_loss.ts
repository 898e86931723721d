import { evaluatePolicyLoss } from '../algorithms/policy_losses/evaluate';
import type { PolicyLossFunction, PolicyLossFunctionInputs } from '../algorithms/policy_losses/registry';
import { type RolloutCorrectionOptions, resolveCorrection } from '../algorithms/rollout_correction/options';
import {
  type CorrectionInputs,
  rolloutCorrectionDouble,
} from '../algorithms/rollout_correction/rollout_correction';
import type { UpdateMetrics } from '../engine/engine_metrics';
import type { NativeGivenLoss, NativePolicyLossOptions } from '../native/bridge';

// The two kinds of loss that TypeScript prepares from the current log-probs before the core takes a gradient.

/** Bypass mode: which core loss, over which tokens, with which weights. */
export interface BypassLoss {
  mode: 'vanilla' | 'reinforce';
  /** [ΣR] without rejected tokens. */
  responseMask: Uint8Array;
  /** [ΣR]; null with ppo_clip, whose ratio is the importance weight already. */
  rolloutIsWeights: Float32Array | null;
  /** rollout_corr/* */
  metrics: UpdateMetrics;
}

/** Corrects for the distance between `logProbs` (current) and `rolloutLogProbs`. Without a valid token nothing is to do. */
export function bypassLoss(inputs: CorrectionInputs, options: RolloutCorrectionOptions): BypassLoss {
  const mode = resolveCorrection(options).lossType === 'reinforce' ? 'reinforce' : 'vanilla';
  const responseMask = Uint8Array.from(inputs.responseMask);
  if (!responseMask.includes(1)) return { mode, responseMask, rolloutIsWeights: null, metrics: {} };
  const corrected = rolloutCorrectionDouble(inputs, options);
  const weights = mode === 'reinforce' ? corrected.rolloutIsWeights : null;
  return {
    mode,
    responseMask: corrected.responseMask,
    rolloutIsWeights: weights === null ? null : Float32Array.from(weights),
    metrics: corrected.metrics,
  };
}

/** A registered loss at the given log-probs, as the core's mode 'linear' takes it. */
export function givenLoss(
  name: string,
  fn: PolicyLossFunction,
  inputs: Omit<PolicyLossFunctionInputs, 'options'>,
  loss: NativePolicyLossOptions,
  kwargs: Readonly<Record<string, unknown>>,
): { given: NativeGivenLoss; metrics: UpdateMetrics } {
  const { clipRatioLow, clipRatioHigh, clipRatioC, aggregation, scaleFactor, extra } = loss;
  const options = { clipRatioLow, clipRatioHigh, clipRatioC, aggregation, scaleFactor, extra, kwargs };
  const result = evaluatePolicyLoss(name, fn, { ...inputs, options });
  return {
    given: { values: result.loss, byLogProb: result.gradLogProbs, byEntropy: result.gradEntropy },
    metrics: result.metrics,
  };
}
