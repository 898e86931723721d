// verl's keys of its Megatron engine, below actor and critic; those of roles that do not learn: inference_megatron_section.ts; of `troupe sft`:
// sft_engine_section.ts.
import { bool, choice, count, dtype, field, fixed, ignored, needs, num, orNull, sectionNeeds } from './field';
import { FUSED, NO_PADDING } from './reasons';

const CHECKPOINTS = 'checkpoints of every layout have one format, which every layout reads';
const BRIDGES = 'Hugging Face directories are read and written directly';

/** Which kernels Megatron takes, and how rows get to their experts: none of it changes what is computed. */
const KERNELS = [
  'apply_rope_fusion',
  'bias_activation_fusion',
  'bias_dropout_fusion',
  'masked_softmax_fusion',
  'persist_layer_norm',
  'use_fused_rmsnorm',
  'use_fused_swiglu',
  'use_naive_l2norm',
  'moe_shared_expert_overlap',
];

/** What a model is, which Megatron's bridges read from its config.json as well. */
const OF_THE_MODEL = ['normalization', 'swiglu', 'multi_latent_attention', 'moe_router_enable_expert_bias'];

/** What keys of the section say, under the same names. */
const OF_THE_SECTION = [
  'tensor_model_parallel_size',
  'pipeline_model_parallel_size',
  'virtual_pipeline_model_parallel_size',
  'context_parallel_size',
  'expert_model_parallel_size',
  'expert_tensor_parallel_size',
  'sequence_parallel',
  'use_distributed_optimizer',
];

const keysIgnored = (keys: readonly string[], why: (key: string) => string) =>
  Object.fromEntries(keys.map((key) => [key, ignored(why(key))]));

/** Why `moe_aux_loss_coeff` changes nothing. */
export const NOT_BALANCED = 'it has no effect with moe_router_load_balancing_type none, verl’s default';

/** Of `override_transformer_config`, what means the same for every role. */
export const transformer = {
  moe_router_load_balancing_type: fixed(
    ['none'],
    'actor_rollout_ref.actor.router_aux_loss_coef is the load-balancing loss, over the whole mini-batch whatever its micro-batches',
  ),
  moe_aux_loss_coeff: ignored(
    `${NOT_BALANCED}; actor_rollout_ref.actor.router_aux_loss_coef is the load-balancing loss`,
  ),
  moe_z_loss_coeff: ignored('the role does not learn'),
  moe_permute_fusion: ignored('experts get their rows one way'),
  moe_grouped_gemm: ignored('experts are computed one way'),
  moe_token_dispatcher_type: ignored('experts get their rows one way'),
  moe_enable_deepep: ignored('experts get their rows one way'),
  moe_router_dtype: ignored(
    'the product of a router is in the compute dtype, its softmax in float32, as in transformers',
  ),
  recompute_granularity: ignored('the role does not learn'),
  recompute_modules: ignored('whole blocks are recomputed, or attention'),
  recompute_method: ignored('all blocks are recomputed, or none'),
  recompute_num_layers: ignored('all blocks are recomputed, or none'),
  attention_backend: ignored('attention is computed one way'),
  context_parallel_algo: ignored('attention is computed one way'),
  use_flash_attn: ignored('attention is computed one way'),
  ...keysIgnored(KERNELS, () => 'the kernels are those of the core'),
  ...keysIgnored(OF_THE_MODEL, () => 'the model is that of config.json'),
  ...keysIgnored(OF_THE_SECTION, (key) => `${key} of the section holds`),
  gradient_accumulation_fusion: ignored('gradients are added in float32, where they lie'),
  deallocate_pipeline_outputs: ignored('what a stage has sent is not kept'),
  attention_dropout: fixed([null, 0], 'nothing is dropped in training'),
  hidden_dropout: fixed([null, 0], 'nothing is dropped in training'),
  moe_router_bias_update_rate: fixed([null, 0], 'routers have no bias that is moved'),
  moe_expert_capacity_factor: needs('a capacity of experts'),
  fp8: needs('training in fp8', false),
  fp8_recipe: needs('training in fp8'),
};

/** Of the section, what means the same for every role. */
export const engine = {
  dynamic_context_parallel: needs('context parallelism that changes from batch to batch', false),
  max_seqlen_per_dp_cp_rank: ignored('it belongs to dynamic_context_parallel, which is not there'),
  override_ddp_config: fixed([{}], 'there is no DDP of Megatron to configure'),
  override_mcore_model_config: fixed([{}], 'the model is that of config.json'),
  use_dist_checkpointing: ignored(CHECKPOINTS),
  dist_checkpointing_path: ignored(CHECKPOINTS),
  dist_checkpointing_prefix: ignored(CHECKPOINTS),
  dist_ckpt_optim_fully_reshardable: ignored(CHECKPOINTS),
  distrib_optim_fully_reshardable_mem_efficient: ignored(CHECKPOINTS),
  use_mbridge: ignored(BRIDGES),
  vanilla_mbridge: ignored(BRIDGES),
  seed: ignored('trainer.seed seeds everything'),
  forward_only: ignored('the reference never trains'),
  load_weight: ignored('weights are always loaded'),
  use_remove_padding: ignored(NO_PADDING),
  entropy_from_logits_with_chunking: ignored(FUSED),
  entropy_from_logits_chunk_size: ignored(FUSED),
  pad_bshd_to_minibatch_max: ignored(NO_PADDING),
  pad_to_length: ignored(NO_PADDING),
  pad_to_length_bucket: ignored(NO_PADDING),
  qat: sectionNeeds('quantisation-aware training', { enable: [] }),
};

/** verl's keys of router replay; docs/algorithms.md. */
export const routerReplaySection = {
  mode: field(
    choice('disabled', 'R2', 'R3'),
    'disabled',
    'Updates of a mixture of experts send tokens where another pass did: R2, the one that computed the old log-probs; R3, the rollout (with rollout.enable_rollout_routing_replay).',
  ),
  record_file: needs('routing in files'),
  replay_file: needs('routing in files'),
};

/** `capacity`: key of the tokens per micro-batch. */
export const contextSize = (capacity: string) =>
  field(
    count('ranks'),
    1,
    `Neighbouring workers that each have some of the tokens of every sequence, and room for ${capacity} of them: times tensor_model_parallel_size and pipeline_model_parallel_size it divides the workers.`,
  );

/** How a model lies on workers that share every matrix or its layers, where `strategy` is megatron; docs/distributed.md. */
export const megatronSection = {
  tensor_model_parallel_size: field(
    count('ranks'),
    1,
    'Neighbouring workers that each hold a part of every matrix: a divisor of the workers and of the attention heads.',
  ),
  pipeline_model_parallel_size: field(
    count('ranks'),
    1,
    'Stages of a pipeline, each with a range of the layers: tensor_model_parallel_size times it divides the workers.',
  ),
  virtual_pipeline_model_parallel_size: field(
    orNull(count('ranks')),
    null,
    'Ranges of layers that each stage has (interleaved schedule); null: 1.',
  ),
  sequence_parallel: field(
    bool,
    true,
    'Each of them computes what lies between the matrices for its own part of the rows. Nothing with one worker per group.',
  ),
  use_distributed_optimizer: field(
    bool,
    true,
    'Optimiser state, gradients and masters are sharded over data parallelism (shard_grad_op); false: every group holds all (no_shard).',
  ),
  use_megatron_fsdp: field(
    bool,
    false,
    'Parameters, too, are gathered block by block (full_shard); with use_distributed_optimizer alone.',
  ),
  param_offload: field(bool, false, 'As that of fsdp_config.'),
  grad_offload: field(bool, false, 'As that of fsdp_config.'),
  optimizer_offload: field(bool, false, 'As that of fsdp_config.'),
  dtype: field(orNull(dtype), null, 'Compute dtype; null: float32 on cpu, bfloat16 on cuda.'),
  context_parallel_size: contextSize('ppo_max_token_len_per_gpu'),
  expert_model_parallel_size: field(
    count('ranks'),
    1,
    'Neighbouring workers of data parallelism that each hold a part of the experts: a divisor of them and of the experts.',
  ),
  expert_tensor_parallel_size: field(
    orNull(count('ranks')),
    null,
    'With T of it, E x T workers share the experts, E = expert_model_parallel_size. They are cut over the tensor-parallel workers here as every other matrix is, so ' +
      'E x T / tensor_model_parallel_size of them hold different ones (as many bytes each), and one of the two must divide the other; null: tensor_model_parallel_size.',
  ),
  override_transformer_config: {
    num_layers_in_first_pipeline_stage: field(
      orNull(count('ranks')),
      null,
      'Layers of the first stage; null: as many as the others.',
    ),
    num_layers_in_last_pipeline_stage: field(
      orNull(count('ranks')),
      null,
      'Layers of the last stage; null: as many as the others.',
    ),
    account_for_embedding_in_pipeline_split: field(
      bool,
      false,
      'The embeddings take the place of a layer of the first stage.',
    ),
    account_for_loss_in_pipeline_split: field(
      bool,
      false,
      'The head takes that of a layer of the last stage.',
    ),
    ...transformer,
    moe_z_loss_coeff: field(
      orNull(num(0)),
      null,
      'The same as router_z_loss_coef of the role; null: that holds. Both where they differ are an error.',
    ),
    recompute_granularity: field(
      orNull(choice('full', 'selective')),
      null,
      'What the backward pass computes again. full: whole blocks; selective: attention alone, whose probabilities are never kept; ' +
        'null: enable_gradient_checkpointing of the model says which of the two, on or off.',
    ),
  },
  router_replay: routerReplaySection,
  ...engine,
};
