import { KL_KINDS } from '../../algorithms/names';
import { PRESET_NAMES } from '../../algorithms/rollout_correction/presets';
import {
  above,
  bool,
  choice,
  field,
  fixed,
  ignored,
  int,
  mapping,
  needs,
  num,
  numbers,
  numOrStr,
  orNull,
  str,
  strings,
} from './field';

export const algorithmSection = {
  adv_estimator: field(str, 'gae', 'Advantage estimator; see docs/algorithms.md.'),
  estimator_kwargs: field(
    mapping,
    {},
    'Options of an estimator of registerAdvantageEstimator, which gets them as config.kwargs.',
  ),
  gamma: field(num(0, 1), 1, 'Discount.'),
  lam: field(num(0, 1), 1, 'GAE lambda.'),
  norm_adv_by_std_in_grpo: field(bool, true, 'false: Dr.GRPO.'),
  use_kl_in_reward: field(bool, false, 'Subtract the KL to the reference policy from the rewards.'),
  kl_penalty: field(
    choice(...KL_KINDS),
    'kl',
    'Estimator of the KL in the rewards; a "+" changes nothing there.',
  ),
  kl_ctrl: {
    type: field(choice('fixed', 'adaptive'), 'fixed', 'KL controller.'),
    kl_coef: field(num(), 0.001, 'Its (first) coefficient.'),
    target_kl: field(above(0), 0.1, 'adaptive: the KL aimed at.'),
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
    preset: field(
      orNull(choice(...PRESET_NAMES)),
      null,
      'Troupe’s own key: a named setting of the keys below; those that are given as well win.',
    ),
    rollout_is: field(
      orNull(choice('token', 'sequence')),
      null,
      'Importance weights for the rollout’s policy.',
    ),
    rollout_is_threshold: field(
      orNull(numOrStr),
      2,
      'A number: weights are cut off there. "lower_upper", in quotes: weights outside become 0. null: no weights.',
    ),
    rollout_is_batch_normalize: field(bool, false, 'Divide the weights by their mean over the batch.'),
    rollout_rs: field(orNull(str), null, 'Rejection criteria, comma-separated; see docs/algorithms.md.'),
    rollout_rs_threshold: field(
      orNull(numOrStr),
      null,
      'One threshold for all criteria or one each, comma-separated; "lower_upper" for *_k1.',
    ),
    bypass_mode: field(
      bool,
      false,
      'Take the rollout’s log-probs as old ones; updates correct against the current policy.',
    ),
    loss_type: field(choice('ppo_clip', 'reinforce'), 'ppo_clip', 'Policy loss of bypass_mode.'),
    rollout_rs_threshold_lower: fixed([null], 'rollout_rs_threshold has both: give "lower_upper"'),
    rollout_token_veto_threshold: needs('a veto of single tokens'),
    use_policy_gradient: fixed([false], 'give bypass_mode true and loss_type reinforce'),
    debug_rollout_actor_probs: needs('a further pass over the model', false),
  },
  filter_groups: {
    enable: field(bool, false, 'DAPO dynamic sampling: train on prompts whose responses differ in `metric`.'),
    metric: field(
      orNull(str),
      null,
      'What must differ: a number that the reward function returns, such as acc or score, or the sum of token rewards: seq_reward, seq_final_reward.',
    ),
    max_num_gen_batches: field(int(0), 0, 'Generation batches per step before giving up; 0: no limit.'),
    max_inflight_gen_batches: ignored('generation batches run one after another'),
  },
  no_think_rl: needs('training without thinking', false),
  gdpo_reward_keys: field(
    orNull(strings),
    null,
    'gdpo: names of the rewards, as the reward function returns them.',
  ),
  gdpo_reward_weights: field(orNull(numbers), null, 'gdpo: one weight per name; null: 1 each.'),
};
