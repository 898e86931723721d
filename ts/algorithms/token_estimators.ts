// Estimators that give every response token its own number. Time runs over policy tokens only: masked
// tokens (tool output, user turns) are skipped, and a reward found on one is credited to the policy
// token before it, undiscounted. verl drops such a reward.
import {
  type AdvantageConfig,
  type AdvantageInputs,
  type AdvantageResult,
  requireColumn,
} from './advantage_types';
import { maskedWhiten } from './masked';

/**
 * Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438):
 * δ_t = r_t + γ V_{t+1} - V_t, A_t = δ_t + γλ A_{t+1}; returns = A + V before A is whitened over the batch.
 * On a masked token A is that of the next policy token and V its own value, as in verl.
 */
export function gae(inputs: AdvantageInputs, config: AdvantageConfig): AdvantageResult {
  const values = requireColumn(inputs, 'values', 'gae');
  const { offsets, responseMask, tokenRewards } = inputs;
  const gamma = config.gamma ?? 1;
  const lam = config.lam ?? 1;
  const advantages = new Float64Array(tokenRewards.length);
  const returns = new Float64Array(tokenRewards.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    let advantage = 0;
    let nextValue = 0;
    let skippedReward = 0;
    for (let t = (offsets[i + 1] as number) - 1; t >= (offsets[i] as number); t--) {
      const value = values[t] as number;
      if (responseMask[t]) {
        const delta = (tokenRewards[t] as number) + skippedReward + gamma * nextValue - value;
        advantage = delta + gamma * lam * advantage;
        nextValue = value;
        skippedReward = 0;
      } else {
        skippedReward += tokenRewards[t] as number;
      }
      advantages[t] = advantage;
      returns[t] = advantage + value;
    }
  }
  return { advantages: maskedWhiten(advantages, responseMask), returns };
}

/** Rewards-to-go of every response token, masked ones included: out[t] = Σ_{s>=t} r_s within the sequence; [ΣR]. */
export function rewardsToGo(inputs: AdvantageInputs): Float64Array {
  const { offsets, tokenRewards } = inputs;
  const out = new Float64Array(tokenRewards.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    let running = 0;
    for (let t = (offsets[i + 1] as number) - 1; t >= (offsets[i] as number); t--) {
      running += tokenRewards[t] as number;
      out[t] = running;
    }
  }
  return out;
}

/** REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): discounted rewards-to-go, whitened over the batch. */
export function reinforcePlusPlus(inputs: AdvantageInputs, config: AdvantageConfig): AdvantageResult {
  const { offsets, responseMask, tokenRewards } = inputs;
  const gamma = config.gamma ?? 1;
  const returns = new Float64Array(tokenRewards.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    let running = 0;
    let skippedReward = 0;
    for (let t = (offsets[i + 1] as number) - 1; t >= (offsets[i] as number); t--) {
      if (responseMask[t]) {
        running = (tokenRewards[t] as number) + skippedReward + gamma * running;
        skippedReward = 0;
        returns[t] = running;
      } else {
        skippedReward += tokenRewards[t] as number;
      }
    }
  }
  const advantages = maskedWhiten(returns, responseMask);
  for (let t = 0; t < advantages.length; t++) if (!responseMask[t]) advantages[t] = 0;
  return { advantages, returns };
}

/** ReMax (Li et al. 2023, arXiv 2310.10505): rewards-to-go minus the reward of the greedy answer. */
export function remax(inputs: AdvantageInputs): AdvantageResult {
  const baselines = requireColumn(inputs, 'rewardBaselines', 'remax');
  const { offsets, responseMask } = inputs;
  const returns = rewardsToGo(inputs);
  const advantages = new Float64Array(returns.length);
  for (let i = 0; i + 1 < offsets.length; i++) {
    const baseline = baselines[i] as number;
    for (let t = offsets[i] as number; t < (offsets[i + 1] as number); t++) {
      advantages[t] = (returns[t] as number) - (responseMask[t] ? baseline : 0);
    }
  }
  return { advantages, returns };
}
