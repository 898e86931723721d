import { bool, choice, count, dtype, field, fixed, ignored, moved, orNull, sectionNeeds, str } from './field';
import { olderRewardModelMegatron, rewardModelMegatronSection } from './inference_megatron_section';
import { DYNAMIC, FUSED, NO_PADDING, TORCH_ONLY } from './reasons';
import { ENGINE_STRATEGY, fsdpConfig, OVERRIDE_CONFIG, ulyssesSize } from './role_parts';

const OWN = 'the reward model runs in an engine like the critic’s: no server is started';

/** Keys of verl's releases up to v0.7.0 that do nothing, below `reward_model` and below `reward.reward_model`. */
const withoutMeaning = {
  rollout: ignored(OWN),
  micro_batch_size: ignored(DYNAMIC),
  micro_batch_size_per_gpu: ignored(DYNAMIC),
  use_dynamic_bsz: ignored(DYNAMIC),
  profiler: sectionNeeds('a profile of the reward model by itself', { enable: [] }),
  nccl_timeout: ignored('actor_rollout_ref.nccl_timeout holds'),
  load_weight: ignored('weights are always loaded'),
};

/** verl's `reward_model.model`, up to v0.7.0. */
const olderModel = {
  path: moved('reward.reward_model.model_path'),
  input_tokenizer: moved('reward.reward_model.input_tokenizer'),
  trust_remote_code: ignored('models are data: no code is run from a model directory'),
  external_lib: fixed([null], 'no Python is involved'),
  override_config: OVERRIDE_CONFIG,
  use_shm: ignored('weights are read once per worker'),
  use_remove_padding: ignored(NO_PADDING),
  use_fused_kernels: ignored(FUSED),
  tiled_mlp: ignored('memory is bounded by the packing capacity'),
  fsdp_config: {
    param_offload: moved('reward.reward_model.model.fsdp_config.param_offload'),
    reshard_after_forward: moved('reward.reward_model.model.fsdp_config.reshard_after_forward'),
    fsdp_size: moved('reward.reward_model.model.fsdp_config.fsdp_size'),
    forward_prefetch: moved('reward.reward_model.model.fsdp_config.forward_prefetch'),
    wrap_policy: ignored(TORCH_ONLY),
  },
};

const { param_offload, reshard_after_forward, fsdp_size, forward_prefetch } = fsdpConfig;
const currentModel = {
  ...olderModel,
  fsdp_config: {
    ...olderModel.fsdp_config,
    param_offload,
    reshard_after_forward,
    fsdp_size,
    forward_prefetch,
  },
};

/** `reward.reward_model`. */
export const rewardModelKeys = {
  enable: field(bool, false, 'Score responses with a reward model.'),
  enable_resource_pool: field(
    bool,
    false,
    'Workers of its own for the reward model, beside those of the policy; false: it shares theirs.',
  ),
  n_gpus_per_node: field(
    count('ranksPerMachine', 0),
    8,
    'With enable_resource_pool: worker processes of the reward model; on cuda one per GPU, after those of the policy.',
  ),
  nnodes: field(
    count('ranks', 0),
    0,
    'With enable_resource_pool: machines, of those of trainer.nnodes the first ones; must be given.',
  ),
  model_path: field(
    orNull(str),
    null,
    'Hugging Face directory of the reward model: token classification with one label.',
  ),
  tokenizer_path: field(
    orNull(str),
    null,
    'Tokenizer of the reward model, used with input_tokenizer; null: model_path.',
  ),
  input_tokenizer: field(
    orNull(str),
    null,
    'Tokenizer directory of the policy, where the reward model has another one: chats are put through its template anew. ' +
      'null: the reward model reads the token ids of the policy.',
  ),
  max_length: field(
    orNull(count('tokens')),
    null,
    'Longest sequence, prompt and response, in tokens; null: as model and packing capacity allow.',
  ),
  truncation: field(
    choice('error', 'left', 'right'),
    'error',
    'A longer sequence: end the run, or drop tokens at that end.',
  ),
  forward_max_token_len_per_gpu: field(
    count('batchTokens'),
    32768,
    'Packing capacity: tokens per micro-batch.',
  ),
  dtype: field(orNull(dtype), null, 'Compute dtype; null: float32 on cpu, bfloat16 on cuda.'),
  ulysses_sequence_parallel_size: ulyssesSize,
  strategy: ENGINE_STRATEGY,
  model: currentModel,
  megatron: rewardModelMegatronSection,
  ...withoutMeaning,
};

/** `reward_model`: where verl's releases up to v0.7.0 keep the keys. */
export const olderRewardModelKeys = {
  enable: moved('reward.reward_model.enable'),
  enable_resource_pool: moved('reward.reward_model.enable_resource_pool'),
  n_gpus_per_node: moved('reward.reward_model.n_gpus_per_node'),
  nnodes: moved('reward.reward_model.nnodes'),
  model_path: moved('reward.reward_model.model_path'),
  max_length: moved('reward.reward_model.max_length'),
  forward_max_token_len_per_gpu: moved('reward.reward_model.forward_max_token_len_per_gpu'),
  ulysses_sequence_parallel_size: moved('reward.reward_model.ulysses_sequence_parallel_size'),
  strategy: moved('reward.reward_model.strategy'),
  model: olderModel,
  megatron: olderRewardModelMegatron,
  ...withoutMeaning,
};
