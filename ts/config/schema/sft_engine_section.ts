import { ignored, moved } from './field';
import { FUSED, TORCH_ONLY } from './reasons';
import { fsdpConfig, MIXED_PRECISION, QAT, STRATEGY } from './role_parts';

/** Where newer versions of verl's SFT trainer keep how the model is spread over the workers. */
export const engineSection = {
  strategy: STRATEGY,
  param_offload: moved('model.fsdp_config.param_offload'),
  optimizer_offload: moved('model.fsdp_config.optimizer_offload'),
  offload_policy: moved('model.fsdp_config.offload_policy'),
  reshard_after_forward: moved('model.fsdp_config.reshard_after_forward'),
  fsdp_size: moved('model.fsdp_config.fsdp_size'),
  forward_prefetch: moved('model.fsdp_config.forward_prefetch'),
  ulysses_sequence_parallel_size: moved('.ulysses_sequence_parallel_size'),
  dtype: moved('model.dtype'),
  model_dtype: fsdpConfig.model_dtype,
  qat: QAT,
  mixed_precision: MIXED_PRECISION,
  seed: ignored('trainer.seed seeds everything'),
  full_determinism: ignored('runs are deterministic always'),
  forward_only: ignored('the model trains'),
  use_orig_params: ignored(TORCH_ONLY),
  use_torch_compile: ignored(TORCH_ONLY),
  wrap_policy: ignored(TORCH_ONLY),
  turbo_config: ignored(TORCH_ONLY),
  pad_to_length: ignored('sequences are always packed without padding'),
  pad_to_length_bucket: ignored('sequences are always packed without padding'),
  entropy_from_logits_with_chunking: ignored(FUSED),
  entropy_from_logits_chunk_size: ignored(FUSED),
  entropy_checkpointing: ignored(FUSED),
};
