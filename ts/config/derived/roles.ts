import { estimatorNeeds } from '../../algorithms/advantages';
import type { ResolvedConfig } from '../schema/ppo_schema';

/** The critic runs when asked for, and by default when the estimator is gae, as in verl, or says that it needs values. */
export function needsCritic({ critic, algorithm }: ResolvedConfig): boolean {
  const { adv_estimator: estimator } = algorithm;
  return critic.enable ?? (estimator === 'gae' || estimatorNeeds(estimator, 'values'));
}

/** The reference model runs when a KL term, in the reward or in the loss, or a registered estimator refers to it. */
export function needsReference({ algorithm, actor_rollout_ref }: ResolvedConfig): boolean {
  return (
    algorithm.use_kl_in_reward ||
    actor_rollout_ref.actor.use_kl_loss ||
    estimatorNeeds(algorithm.adv_estimator, 'refLogProbs')
  );
}

/** The reward model runs when asked for. */
export function needsRewardModel({ reward }: ResolvedConfig): boolean {
  return reward.reward_model.enable;
}

/** Whether adapters are trained instead of the weights. */
export const usesLora = (
  model: Pick<ResolvedConfig['critic']['model'], 'lora_rank' | 'lora_adapter_path'>,
): boolean => model.lora_rank > 0 || model.lora_adapter_path !== null;
