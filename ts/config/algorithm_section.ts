import { above, bool, choice, field, fixed, ignored, num, str } from './field';
import { NOT_YET } from './reasons';

export const KL_KINDS = ['kl', 'k1', 'abs', 'mse', 'k2', 'low_var_kl', 'k3'] as const;

export const algorithmSection = {
  adv_estimator: field(str, 'gae', 'Advantage estimator; see docs/algorithms.md.'),
  gamma: field(num(0, 1), 1, 'Discount.'),
  lam: field(num(0, 1), 1, 'GAE lambda.'),
  norm_adv_by_std_in_grpo: field(bool, true, 'false: Dr.GRPO.'),
  use_kl_in_reward: field(bool, false, 'Subtract the KL to the reference policy from the rewards.'),
  kl_penalty: field(choice(...KL_KINDS), 'kl', 'Estimator of the KL in the rewards.'),
  kl_ctrl: {
    type: field(choice('fixed', 'adaptive'), 'fixed', 'KL controller.'),
    kl_coef: field(num(), 0.001, 'Its (first) coefficient.'),
    target_kl: field(num(0), 0.1, 'adaptive: the KL aimed at.'),
    horizon: field(above(0), 10000, 'adaptive: samples over which the coefficient moves.'),
  },
  egpo_lambda: field(num(), 0.4, 'egpo: weight of the entropy term.'),
  egpo_alpha: field(above(0), 2, 'egpo: bound of the entropy term.'),
  use_pf_ppo: fixed([false], `PF-PPO ${NOT_YET}`),
  pf_ppo: ignored('PF-PPO is off'),
  rollout_correction: {
    rollout_is: fixed([null], `rollout correction ${NOT_YET}`),
    rollout_is_threshold: ignored('rollout correction is off'),
    rollout_is_batch_normalize: ignored('rollout correction is off'),
    rollout_rs: fixed([null], `rollout correction ${NOT_YET}`),
    rollout_rs_threshold: ignored('rollout correction is off'),
    bypass_mode: fixed([false], `rollout correction ${NOT_YET}`),
    loss_type: ignored('rollout correction is off'),
  },
  filter_groups: {
    enable: fixed([false], `dynamic sampling ${NOT_YET}`),
    metric: ignored('dynamic sampling is off'),
    max_num_gen_batches: ignored('dynamic sampling is off'),
  },
  gdpo_reward_keys: fixed([null], 'gdpo is not available in training'),
  gdpo_reward_weights: fixed([null], 'gdpo is not available in training'),
};
