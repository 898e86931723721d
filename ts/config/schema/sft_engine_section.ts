import { ignored, moved, needs, sectionNeeds } from './field';
import { contextSize, megatronSection, NOT_BALANCED } from './megatron_section';
import { TORCH_ONLY } from './reasons';
import { fsdpConfig, mixedPrecision, QAT, SFT_STRATEGY } from './role_parts';

const BALANCED = 'the load-balancing loss of routers in a supervised run';

/**
 * Where newer versions of verl's SFT trainer keep how the model is spread over the workers: the keys of FSDP, which have places of their own here,
 * and those of Megatron, read where `strategy` is megatron. What both have is one key.
 */
export const engineSection = {
  strategy: SFT_STRATEGY,
  ...megatronSection,
  context_parallel_size: contextSize('data.max_token_len_per_gpu'),
  param_offload: moved('model.fsdp_config.param_offload'),
  optimizer_offload: moved('model.fsdp_config.optimizer_offload'),
  grad_offload: moved('model.fsdp_config.grad_offload'),
  offload_policy: moved('model.fsdp_config.offload_policy'),
  reshard_after_forward: moved('model.fsdp_config.reshard_after_forward'),
  fsdp_size: moved('model.fsdp_config.fsdp_size'),
  forward_prefetch: moved('model.fsdp_config.forward_prefetch'),
  ulysses_sequence_parallel_size: moved('.ulysses_sequence_parallel_size'),
  dtype: moved('model.dtype'),
  override_transformer_config: {
    ...megatronSection.override_transformer_config,
    moe_router_load_balancing_type: needs(BALANCED, 'none'),
    moe_aux_loss_coeff: ignored(NOT_BALANCED),
    moe_z_loss_coeff: moved('model.router_z_loss_coef'),
  },
  router_replay: sectionNeeds('router replay in a supervised run', { mode: ['disabled'] }),
  model_dtype: moved('model.fsdp_config.model_dtype'),
  qat: QAT,
  mixed_precision: {
    ...mixedPrecision,
    reduce_dtype: moved('model.fsdp_config.mixed_precision.reduce_dtype'),
  },
  full_determinism: ignored('runs are deterministic always'),
  forward_only: ignored('the model trains'),
  use_orig_params: ignored(TORCH_ONLY),
  use_torch_compile: ignored(TORCH_ONLY),
  wrap_policy: ignored(TORCH_ONLY),
  turbo_config: ignored(TORCH_ONLY),
  entropy_checkpointing: fsdpConfig.entropy_checkpointing,
};
