import { KL_KINDS } from '../../algorithms/names';
import {
  above,
  bool,
  choice,
  count,
  derived,
  field,
  fixed,
  ignored,
  mapping,
  moved,
  needs,
  num,
  orNull,
  sectionNeeds,
  str,
} from './field';
import { referenceMegatronSection } from './inference_megatron_section';
import { megatronSection, routerReplaySection } from './megatron_section';
import { optim } from './optim_section';
import { DYNAMIC, FUSED, TORCH_ONLY } from './reasons';
import { ENGINE_STRATEGY, fsdpConfig, PROFILER, QAT, updates } from './role_parts';

/** The reference chooses for itself, as in verl unless it is told otherwise. */
const NO_REPLAY = sectionNeeds('router replay of the reference', { mode: ['disabled'] });

export const actorSection = {
  ...updates,
  strategy: ENGINE_STRATEGY,
  ppo_max_token_len_per_gpu: field(count('batchTokens'), 16384, 'Packing capacity: tokens per micro-batch.'),
  clip_ratio: field(num(0), 0.2, 'PPO clip range.'),
  clip_ratio_low: derived(num(0), 'actor_rollout_ref.actor.clip_ratio', 'Lower clip range.'),
  clip_ratio_high: derived(num(0), 'actor_rollout_ref.actor.clip_ratio', 'Upper clip range.'),
  clip_ratio_c: field(above(1), 3, 'Dual-clip bound on negative advantages.'),
  tau_pos: field(above(0), 1, 'sapo: temperature for positive advantages.'),
  tau_neg: field(above(0), 1.05, 'sapo: temperature for negative advantages.'),
  policy_loss: {
    loss_mode: field(str, 'vanilla', 'Policy loss, also one of registerPolicyLoss; see docs/algorithms.md.'),
    kwargs: field(mapping, {}, 'Options of a loss of registerPolicyLoss, which gets them as options.kwargs.'),
    clip_cov_ratio: field(num(0, 1), 2e-4, 'clip_cov: share of tokens.'),
    clip_cov_lb: field(num(), 1, 'clip_cov: lower covariance bound.'),
    clip_cov_ub: field(num(), 5, 'clip_cov: upper covariance bound.'),
    kl_cov_ratio: field(num(0, 1), 2e-4, 'kl_cov: share of tokens.'),
    ppo_kl_coef: field(num(0), 0.1, 'kl_cov: KL coefficient.'),
    tau_pos: ignored('actor_rollout_ref.actor.tau_pos holds, as in verl'),
    tau_neg: ignored('actor_rollout_ref.actor.tau_neg holds, as in verl'),
    dro_beta: field(orNull(above(0)), null, 'dro: beta.'),
  },
  entropy_coeff: field(num(), 0, 'Coefficient of the entropy bonus.'),
  calculate_entropy: ignored('entropy comes with the log-probs at no cost'),
  use_kl_loss: field(bool, false, 'Add the KL to the reference policy to the loss.'),
  kl_loss_coef: field(num(), 0.001, 'Coefficient of the KL loss.'),
  kl_loss_type: field(
    choice(...KL_KINDS),
    'low_var_kl',
    'Estimator; with "+" its value and the gradient of k2, which is unbiased.',
  ),
  router_aux_loss_coef: field(
    num(0),
    0,
    'Mixture of experts: weight of the load-balancing loss, at the cost of one more forward pass. 0 as in verl, whatever config.json says.',
  ),
  calculate_sum_pi_squared: field(
    bool,
    false,
    'Also compute the sum of squared probabilities (optimal-token baselines).',
  ),
  optim: optim(1e-6, 'actor_rollout_ref.actor'),
  fsdp_config: fsdpConfig,
  entropy_from_logits_with_chunking: ignored(FUSED),
  entropy_from_logits_chunk_size: ignored(FUSED),
  entropy_checkpointing: ignored(FUSED),
  use_torch_compile: ignored(TORCH_ONLY),
  sum_pi_squared_checkpointing: ignored(FUSED),
  rollout_n: ignored('actor_rollout_ref.rollout.n holds'),
  engine: ignored('there is one engine'),
  load_weight: ignored('weights are always loaded'),
  use_prefix_grouper: ignored('the prompt of a group is always computed once'),
  freeze_vision_tower: needs('images', false),
  router_replay: routerReplaySection,
  state_masking: fixed([true], 'tokens of observations never carry a gradient'),
  qat: QAT,
  veomni: needs('another engine than FSDP'),
  torchtitan: needs('another engine than FSDP'),
  rollout_correction: fixed([null, {}], 'write it under algorithm.rollout_correction'),
  recompute_old_log_prob: ignored('algorithm.rollout_correction.bypass_mode decides'),
  use_rollout_log_probs: ignored('algorithm.rollout_correction.bypass_mode decides'),
  megatron: megatronSection,
};

const AS_ACTOR = ignored('the settings of the actor hold');

/** The reference is sharded as the actor is; where its weights lie is its own. */
const refFsdpConfig = {
  param_offload: field(bool, false, 'Weights of the reference on the host; see the actor’s.'),
  offload_policy: field(bool, false, 'Means param_offload: the reference has nothing else.'),
  forward_prefetch: field(bool, false, 'Gather the next block while one is at work.'),
  dtype: AS_ACTOR,
  model_dtype: AS_ACTOR,
  seed: AS_ACTOR,
  optimizer_offload: ignored('the reference does not learn'),
  grad_offload: ignored('the reference does not learn'),
  gradient_reduction: ignored('the reference does not learn'),
  strategy: AS_ACTOR,
  qat: AS_ACTOR,
  reshard_after_forward: AS_ACTOR,
  fsdp_size: AS_ACTOR,
  forward_only: AS_ACTOR,
  full_determinism: AS_ACTOR,
  use_orig_params: AS_ACTOR,
  use_torch_compile: AS_ACTOR,
  wrap_policy: AS_ACTOR,
  mixed_precision: AS_ACTOR,
  ulysses_sequence_parallel_size: moved('actor_rollout_ref.ref.ulysses_sequence_parallel_size'),
  entropy_from_logits_with_chunking: AS_ACTOR,
  entropy_checkpointing: AS_ACTOR,
};

export const refSection = {
  log_prob_max_token_len_per_gpu: derived(
    count('batchTokens'),
    'actor_rollout_ref.actor.ppo_max_token_len_per_gpu',
    'Packing capacity of the reference.',
  ),
  log_prob_micro_batch_size: ignored(DYNAMIC),
  log_prob_micro_batch_size_per_gpu: ignored(DYNAMIC),
  log_prob_use_dynamic_bsz: ignored(DYNAMIC),
  strategy: ignored('the strategy of the actor holds'),
  model: needs('a reference with a model of its own', {}),
  router_replay: NO_REPLAY,
  rollout_n: ignored('actor_rollout_ref.rollout.n holds'),
  load_weight: ignored('weights are always loaded'),
  megatron: referenceMegatronSection,
  fsdp_config: refFsdpConfig,
  use_torch_compile: ignored(TORCH_ONLY),
  ulysses_sequence_parallel_size: derived(
    count('ranks'),
    'actor_rollout_ref.actor.ulysses_sequence_parallel_size',
    'Neighbouring workers that share micro-batches of the reference.',
  ),
  entropy_from_logits_with_chunking: ignored(FUSED),
  entropy_from_logits_chunk_size: ignored(FUSED),
  entropy_checkpointing: ignored(FUSED),
  profiler: PROFILER,
};
