import type { ResolvedConfig } from '../schema/ppo_schema';

/** The critic runs when asked for, and by default when the estimator is gae, as in verl. */
export function needsCritic({ critic, algorithm }: ResolvedConfig): boolean {
  return critic.enable ?? algorithm.adv_estimator === 'gae';
}

/** The reference model runs when a KL term, in the reward or in the loss, refers to it. */
export function needsReference({ algorithm, actor_rollout_ref }: ResolvedConfig): boolean {
  return algorithm.use_kl_in_reward || actor_rollout_ref.actor.use_kl_loss;
}

/** The reward model runs when asked for. */
export function needsRewardModel({ reward }: ResolvedConfig): boolean {
  return reward.reward_model.enable;
}
