import { TroupeError } from '../errors';
import type { RewardFunction } from '../reward/contract/types';

/** The reward model's score is the reward: what holds when there is a reward model and no reward function is given. */
export const rewardModelScore: RewardFunction = ({ rewardModelScore: score }) => {
  if (score === undefined)
    throw new TroupeError('INTERNAL', '[reward] the sample has no score of the reward model');
  return { score };
};
