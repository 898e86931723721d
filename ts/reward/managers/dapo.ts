import { ConfigError } from '../../errors';
import type { OverlongOptions, RewardManagerFactory } from '../contract/types';
import { naiveManager } from './naive';

const KEY = 'reward.reward_kwargs';

function checkOverlong({ len, maxRespLen }: OverlongOptions): void {
  if (len <= maxRespLen) return;
  throw new ConfigError(
    `${KEY}.overlong_buffer_cfg.len: expected at most ${KEY}.max_resp_len (${maxRespLen}), got ${len}`,
    `${KEY}.overlong_buffer_cfg.len`,
  );
}

/**
 * DAPO's soft overlong punishment (Yu et al. 2025, arXiv 2503.14476, as verl computes it): 0 up to `maxRespLen - len`
 * tokens, then falling linearly to -`penaltyFactor` at `maxRespLen`, and on.
 */
export function overlongReward(tokens: number, options: OverlongOptions): number {
  const exceeded = tokens - (options.maxRespLen - options.len);
  return Math.min((-exceeded / options.len) * options.penaltyFactor, 0);
}

/**
 * verl's dapo manager: naive, plus the penalty of long responses. Extras stay those of the function, so `acc` does not
 * see the penalty.
 */
export const dapoManager: RewardManagerFactory = (fn, options) => {
  const naive = naiveManager(fn, options);
  const { overlong } = options;
  if (!overlong?.enable) return naive;
  checkOverlong(overlong);
  return {
    async score(samples) {
      const rewards = await naive.score(samples);
      const penalties = samples.map(({ responseTokens }) => overlongReward(responseTokens.length, overlong));
      const scores = rewards.scores.map((score, i) => score + (penalties[i] as number));
      const logged: Record<string, unknown[]> = overlong.log
        ? { overlong_reward: penalties, overlong: penalties.map((penalty) => penalty < 0) }
        : {};
      return { ...rewards, scores, extras: { ...rewards.extras, ...logged } };
    },
  };
};
