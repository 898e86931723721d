// Estimators that give every response token its own number. Time runs over policy tokens only: masked
// tokens (tool output, user turns) are skipped, and a reward found on one is credited to the policy
// token before it, undiscounted. verl drops such a reward.
import {
  type AdvantageInputs,
  requireColumn,
  type TokenColumn,
  type TokenEstimator,
} from './advantage_types';
import { Moments, type Whitening } from './moments';
import type { NumberArray } from './ragged';

/** How far rewards reach; without `values` (REINFORCE++) they count as 0. */
interface Discounting {
  values: NumberArray | null;
  gamma: number;
  /** γλ */
  decay: number;
}

/**
 * Moments of the advantages A_t = δ_t + γλ A_{t+1}, δ_t = r_t + γ V_{t+1} - V_t, over the policy tokens. They are needed
 * before the first advantage can be written, and computing the advantages twice takes less time than keeping them in double.
 */
function advantageMoments(inputs: AdvantageInputs, { values, gamma, decay }: Discounting): Moments {
  const { offsets, responseMask, tokenRewards } = inputs;
  const moments = new Moments();
  for (let i = 0; i + 1 < offsets.length; i++) {
    const start = offsets[i] as number;
    let advantage = 0;
    let nextValue = 0;
    let skippedReward = 0;
    let count = 0;
    let centre = 0;
    let sum = 0;
    let squares = 0;
    for (let t = (offsets[i + 1] as number) - 1; t >= start; t--) {
      const reward = tokenRewards[t] as number;
      if (!responseMask[t]) {
        skippedReward += reward;
        continue;
      }
      const value = values === null ? 0 : (values[t] as number);
      advantage = reward + skippedReward + gamma * nextValue - value + decay * advantage;
      nextValue = value;
      skippedReward = 0;
      if (count === 0) centre = advantage;
      count++;
      sum += advantage - centre;
      squares += (advantage - centre) * (advantage - centre);
    }
    moments.add(count, centre, sum, squares);
  }
  return moments;
}

/** Whitened advantages, and returns A + V; on masked tokens too if `masked`. */
function writeAdvantages(
  inputs: AdvantageInputs,
  { values, gamma, decay }: Discounting,
  { mean, scale }: Whitening,
  masked: boolean,
  out: { advantages: TokenColumn; returns: TokenColumn },
): void {
  const { offsets, responseMask, tokenRewards } = inputs;
  const { advantages, returns } = out;
  for (let i = 0; i + 1 < offsets.length; i++) {
    const start = offsets[i] as number;
    let advantage = 0;
    let nextValue = 0;
    let skippedReward = 0;
    for (let t = (offsets[i + 1] as number) - 1; t >= start; t--) {
      const reward = tokenRewards[t] as number;
      const value = values === null ? 0 : (values[t] as number);
      if (responseMask[t]) {
        advantage = reward + skippedReward + gamma * nextValue - value + decay * advantage;
        nextValue = value;
        skippedReward = 0;
      } else {
        skippedReward += reward;
        if (masked === false) continue;
      }
      advantages[t] = (advantage - mean) * scale;
      returns[t] = advantage + value;
    }
  }
}

/**
 * Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438):
 * δ_t = r_t + γ V_{t+1} - V_t, A_t = δ_t + γλ A_{t+1}; returns = A + V before A is whitened over the batch.
 * On a masked token A is that of the next policy token and V its own value, as in verl.
 */
export const gae: TokenEstimator = (inputs, config, out) => {
  const gamma = config.gamma ?? 1;
  const discounting = {
    values: requireColumn(inputs, 'values', 'gae'),
    gamma,
    decay: gamma * (config.lam ?? 1),
  };
  const whitening = advantageMoments(inputs, discounting).whitening();
  writeAdvantages(inputs, discounting, whitening, true, out);
};

/** REINFORCE++ (Hu et al. 2025, arXiv 2501.03262): discounted rewards-to-go, whitened over the batch. */
export const reinforcePlusPlus: TokenEstimator = (inputs, config, out) => {
  const gamma = config.gamma ?? 1;
  const discounting = { values: null, gamma, decay: gamma };
  const whitening = advantageMoments(inputs, discounting).whitening();
  writeAdvantages(inputs, discounting, whitening, false, out);
};

/** ReMax (Li et al. 2023, arXiv 2310.10505): rewards-to-go minus the reward of the greedy answer. */
export const remax: TokenEstimator = (inputs, _config, out) => {
  const baselines = requireColumn(inputs, 'rewardBaselines', 'remax');
  const { offsets, responseMask, tokenRewards } = inputs;
  const { advantages, returns } = out;
  for (let i = 0; i + 1 < offsets.length; i++) {
    const baseline = baselines[i] as number;
    const start = offsets[i] as number;
    let rewardsToGo = 0;
    for (let t = (offsets[i + 1] as number) - 1; t >= start; t--) {
      rewardsToGo += tokenRewards[t] as number;
      returns[t] = rewardsToGo;
      advantages[t] = responseMask[t] ? rewardsToGo - baseline : rewardsToGo;
    }
  }
};
