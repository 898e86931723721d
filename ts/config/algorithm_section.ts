import { above, bool, choice, field, fixed, ignored, int, num, numbers, orNull, str, strings } from './field';
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
  use_pf_ppo: field(bool, false, 'gae: update on a re-weighted resample of the batch (PF-PPO).'),
  pf_ppo: {
    reweight_method: field(
      choice('pow', 'max_min', 'max_random'),
      'pow',
      'PF-PPO: weight of a response by its score.',
    ),
    weight_pow: field(num(0), 2, 'pow: exponent of the weight.'),
  },
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
    enable: field(bool, false, 'DAPO dynamic sampling: train on prompts whose responses differ in `metric`.'),
    metric: field(
      orNull(choice('acc', 'score', 'seq_reward', 'seq_final_reward')),
      null,
      'What must differ: `acc` of the reward function, its score, or the sum of token rewards.',
    ),
    max_num_gen_batches: field(int(0), 0, 'Generation batches per step before giving up; 0: no limit.'),
    max_inflight_gen_batches: ignored('generation batches run one after another'),
  },
  gdpo_reward_keys: field(
    orNull(strings),
    null,
    'gdpo: names of the rewards, as the reward function returns them.',
  ),
  gdpo_reward_weights: field(orNull(numbers), null, 'gdpo: one weight per name; null: 1 each.'),
};
