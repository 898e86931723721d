// Why a key of verl changes nothing here, where several keys share the reason.
export const DYNAMIC =
  'micro-batches are always packed by token count (ppo_max_token_len_per_gpu); results do not depend on them';
export const ROLLOUT_ENGINE = 'generation runs in our own engine, not in a separate inference engine';
export const NO_PADDING = 'sequences are always packed without padding';
export const FUSED = 'the head is always fused (linear_log_prob)';
export const TORCH_ONLY = 'concerns PyTorch modules; the core has none';
