import { KL_KINDS } from './algorithm_section';
import { above, bool, choice, derived, field, fixed, ignored, int, num, orNull, str } from './field';
import { DYNAMIC, FUSED, NO_PROFILER, NOT_YET, TORCH_ONLY } from './reasons';
import { fsdpConfig, optim, updates } from './role_parts';

const KL_LOSS_KINDS = [...KL_KINDS, 'kl+', 'k1+', 'abs+', 'mse+', 'k2+', 'low_var_kl+', 'k3+'] as const;

export const actorSection = {
  ...updates,
  strategy: fixed(['fsdp', 'fsdp2'], `strategy megatron ${NOT_YET}; both fsdp names mean the same engine`),
  ppo_max_token_len_per_gpu: field(int(1), 16384, 'Packing capacity: tokens per micro-batch.'),
  clip_ratio: field(num(0), 0.2, 'PPO clip range.'),
  clip_ratio_low: derived(num(0), 'actor_rollout_ref.actor.clip_ratio', 'Lower clip range.'),
  clip_ratio_high: derived(num(0), 'actor_rollout_ref.actor.clip_ratio', 'Upper clip range.'),
  clip_ratio_c: field(above(1), 3, 'Dual-clip bound on negative advantages.'),
  tau_pos: field(above(0), 1, 'sapo: temperature for positive advantages.'),
  tau_neg: field(above(0), 1.05, 'sapo: temperature for negative advantages.'),
  policy_loss: {
    loss_mode: field(str, 'vanilla', 'Policy loss, also one of registerPolicyLoss; see docs/algorithms.md.'),
    clip_cov_ratio: field(num(0, 1), 2e-4, 'clip_cov: share of tokens.'),
    clip_cov_lb: field(num(), 1, 'clip_cov: lower covariance bound.'),
    clip_cov_ub: field(num(), 5, 'clip_cov: upper covariance bound.'),
    kl_cov_ratio: field(num(0, 1), 2e-4, 'kl_cov: share of tokens.'),
    ppo_kl_coef: field(num(0), 0.1, 'kl_cov: KL coefficient.'),
    dro_beta: field(orNull(above(0)), null, 'dro: beta.'),
  },
  entropy_coeff: field(num(), 0, 'Coefficient of the entropy bonus.'),
  calculate_entropy: ignored('entropy comes with the log-probs at no cost'),
  use_kl_loss: field(bool, false, 'Add the KL to the reference policy to the loss.'),
  kl_loss_coef: field(num(), 0.001, 'Coefficient of the KL loss.'),
  kl_loss_type: field(
    choice(...KL_LOSS_KINDS),
    'low_var_kl',
    'Estimator; with "+" its value and the gradient of k2, which is unbiased.',
  ),
  calculate_sum_pi_squared: field(
    bool,
    false,
    'Also compute the sum of squared probabilities (optimal-token baselines).',
  ),
  optim: optim(1e-6, 'actor_rollout_ref.actor'),
  fsdp_config: fsdpConfig,
  entropy_from_logits_with_chunking: ignored(FUSED),
  entropy_checkpointing: ignored(FUSED),
  use_torch_compile: ignored(TORCH_ONLY),
  sum_pi_squared_checkpointing: ignored(FUSED),
  rollout_n: ignored('actor_rollout_ref.rollout.n holds'),
  engine: ignored('there is one engine'),
  load_weight: ignored('weights are always loaded'),
  use_prefix_grouper: ignored('the prompt of a group is always computed once'),
  freeze_vision_tower: ignored('there is no vision tower'),
  router_replay: ignored('expert routing is deterministic'),
  qat: { enable: fixed([false], `quantisation-aware training ${NOT_YET}`) },
  veomni: fixed([null], TORCH_ONLY),
  rollout_correction: fixed([null, {}], 'write it under algorithm.rollout_correction'),
  recompute_old_log_prob: ignored('algorithm.rollout_correction.bypass_mode decides'),
  megatron: fixed([null], `strategy megatron ${NOT_YET}`),
};

export const refSection = {
  log_prob_max_token_len_per_gpu: derived(
    int(1),
    'actor_rollout_ref.actor.ppo_max_token_len_per_gpu',
    'Packing capacity of the reference.',
  ),
  log_prob_micro_batch_size: ignored(DYNAMIC),
  log_prob_micro_batch_size_per_gpu: ignored(DYNAMIC),
  log_prob_use_dynamic_bsz: ignored(DYNAMIC),
  strategy: ignored('the strategy of the actor holds'),
  model: ignored('the reference is the model that the run started from'),
  router_replay: ignored('expert routing is deterministic'),
  rollout_n: ignored('actor_rollout_ref.rollout.n holds'),
  load_weight: ignored('weights are always loaded'),
  megatron: ignored('the settings of the actor hold'),
  fsdp_config: ignored('the settings of the actor hold'),
  use_torch_compile: ignored(TORCH_ONLY),
  ulysses_sequence_parallel_size: fixed([1], `sequence parallelism ${NOT_YET}`),
  entropy_from_logits_with_chunking: ignored(FUSED),
  entropy_checkpointing: ignored(FUSED),
  profiler: ignored(NO_PROFILER),
};
