// Parts that several roles have in common.
import { AGGREGATIONS } from '../../algorithms/names';
import { RUN_LIMITS } from '../../base/limits';
import {
  above,
  bool,
  choice,
  count,
  derived,
  dtype,
  type Fixed,
  field,
  fixed,
  ignored,
  int,
  missing,
  needs,
  num,
  orNull,
  sectionNeeds,
  str,
} from './field';
import { lora } from './lora_section';
import { roleProfiler } from './profiler_section';
import { DYNAMIC, FUSED, NO_PADDING, TORCH_ONLY } from './reasons';

const OF_SERVERS = ignored('of servers: what a managed one takes stands in server.args');
/** Layers that predict further tokens (multi-token prediction). */
export const mtp = {
  enable: field(
    bool,
    false,
    'Read what mtp.enable_train and mtp.enable_rollout say. Layers that predict further tokens are saved with the model in any case.',
  ),
  enable_train: field(
    bool,
    false,
    'With mtp.enable: train the layers that predict further tokens, too (docs/models.md); else they stay as they are.',
  ),
  enable_rollout: field(
    bool,
    false,
    'With mtp.enable: our own engine drafts with these layers, as with rollout.speculative_config.method mtp, which then need not be given.',
  ),
  detach_encoder: field(
    bool,
    false,
    'Of mtp.enable_train: these layers alone learn from their loss; the decoder and the embeddings do not.',
  ),
  mtp_loss_scaling_factor: field(
    num(0),
    0.1,
    'Of mtp.enable_train: weight of the loss, the mean over the layers of the cross-entropies of their tokens.',
  ),
  speculative_algorithm: OF_SERVERS,
  speculative_num_steps: OF_SERVERS,
  speculative_eagle_topk: OF_SERVERS,
  speculative_num_draft_tokens: OF_SERVERS,
  method: OF_SERVERS,
  num_speculative_tokens: field(
    count('tokens'),
    1,
    'Of mtp.enable_rollout: guesses per response and step at most.',
  ),
};
export const QAT = sectionNeeds('quantisation-aware training', { enable: [] });
const OTHER_PRECISION = 'another mixed precision than bfloat16, with gradients in float32 or bfloat16';
/** Compute in the dtype of the role. */
export const mixedPrecision = {
  param_dtype: needs(OTHER_PRECISION, 'bf16', 'bfloat16'),
  reduce_dtype: field(
    choice('fp32', 'float32', 'bf16', 'bfloat16'),
    'fp32',
    'What sharded gradients are rounded to on their way to the rank that sums them, in float32 (docs/numerics.md). bf16: half of the bytes.',
  ),
  buffer_dtype: needs(OTHER_PRECISION, 'fp32', 'float32'),
};
/** Both names of FSDP mean the one engine that there is, spread by `fsdp`; megatron: by other keys. */
const engineStrategy = (fsdp: string, megatron: string) =>
  field(
    choice('fsdp', 'fsdp2', 'megatron'),
    'fsdp',
    `fsdp (fsdp2 means the same): the model is spread as ${fsdp} says; megatron: as ${megatron}.`,
  );
export const ENGINE_STRATEGY = engineStrategy('fsdp_config', 'the section megatron says');
export const SFT_STRATEGY = engineStrategy('model.fsdp_config', 'the keys beside this one say');
/** Both names of FSDP mean the one engine that there is. */
export const STRATEGY = needs('another engine than FSDP (Megatron or the like)', 'fsdp', 'fsdp2');
const EDIT_CONFIG = `${missing('a changed config.json')}: edit config.json of the model directory instead`;
/** What of a changed config.json is what happens here anyway: attention is computed one way, and nothing is dropped out. */
const UNCHANGED = {
  attn_implementation: ['sdpa', 'eager', 'flash_attention_2', 'flash_attention_3'],
  attention_dropout: [0],
  embd_pdrop: [0],
  resid_pdrop: [0],
};
export const OVERRIDE_CONFIG: Fixed = { ...fixed([{}], EDIT_CONFIG), only: UNCHANGED };
/** Values that take the place of config.json's, in the run and in the models that it saves. */
export const overrideConfig = {
  ...Object.fromEntries(
    Object.entries(UNCHANGED).map(([key, accepts]) => [key, fixed([null, ...accepts], EDIT_CONFIG)]),
  ),
  rope_theta: fixed([null], EDIT_CONFIG),
  rope_scaling: fixed([null], EDIT_CONFIG),
  model_config: fixed([null, {}], `${EDIT_CONFIG}, or give override_config.max_position_embeddings`),
  // The second is what verl's configuration of Megatron says by default.
  moe_config: fixed([null, {}, { freeze_moe_router: false }], EDIT_CONFIG),
  max_position_embeddings: field(
    orNull(count('tokens')),
    null,
    'Positions of the model in place of config.json’s, also for what RoPE scalings derive from them; null: config.json’s.',
  ),
};

/** How a model is spread over the workers, and where it lies; docs/distributed.md. */
export const sharding = {
  param_offload: field(
    bool,
    false,
    'Weights (of what is trained the masters, too) on the host; they come to the GPU group by group for their use. On cpu it saves nothing.',
  ),
  optimizer_offload: field(bool, false, 'The same for moments: both of AdamW, momentum of Muon.'),
  grad_offload: field(bool, false, 'The same for the gradients that the optimiser takes.'),
  offload_policy: field(
    bool,
    false,
    'All three: param_offload, optimizer_offload and grad_offload, as FSDP2’s CPUOffloadPolicy.',
  ),
  reshard_after_forward: field(
    bool,
    true,
    'true: parameters are gathered block by block (full_shard); false: once per call or optimiser step (shard_grad_op).',
  ),
  fsdp_size: field(
    int(-1, RUN_LIMITS.ranks),
    -1,
    'Ranks that share one copy of the state: -1: all; 1: none, every rank holds everything (no_shard); else a divisor of the workers.',
  ),
  forward_prefetch: field(
    bool,
    false,
    'Gather the next block while one is at work, forward and backward; takes the memory of one more block.',
  ),
};

/** verl's keys of the sharding engine; docs/distributed.md. */
export const fsdpConfig = {
  ...sharding,
  dtype: field(orNull(dtype), null, 'Compute dtype; null: float32 on cpu, bfloat16 on cuda.'),
  model_dtype: field(
    dtype,
    'float32',
    'Dtype of the weights that are trained and of their moments. bfloat16: 10 bytes a weight in place of 18, rounded stochastically by ' +
      'every update (docs/numerics.md); what is computed is bfloat16, too. With LoRA all that is trained is float32.',
  ),
  seed: ignored('trainer.seed seeds everything'),
  strategy: STRATEGY,
  qat: QAT,
  gradient_reduction: field(
    choice('micro_batch', 'mini_batch', 'auto'),
    'micro_batch',
    'When sharded gradients are summed over the ranks. mini_batch: once per optimiser step; fewer bytes are sent, and whole float32 ' +
      'gradients are kept. auto: mini_batch where the plan of the run fits into trainer.memory_per_rank.',
  ),
  forward_only: ignored('the reference never trains'),
  full_determinism: ignored('runs are deterministic always'),
  use_orig_params: ignored(TORCH_ONLY),
  use_torch_compile: ignored(TORCH_ONLY),
  wrap_policy: ignored(TORCH_ONLY),
  mixed_precision: mixedPrecision,
  ulysses_sequence_parallel_size: field(
    count('ranks'),
    1,
    'The same as that of the role, which holds when it is more than 1.',
  ),
  entropy_from_logits_with_chunking: ignored(FUSED),
  entropy_from_logits_chunk_size: ignored(FUSED),
  pad_to_length: ignored(NO_PADDING),
  pad_to_length_bucket: ignored(NO_PADDING),
  entropy_checkpointing: ignored(FUSED),
};

const checkpoint = {
  save_contents: ignored('model, optimiser and trainer state are always saved'),
  load_contents: ignored('model, optimiser and trainer state are always loaded'),
  contents: ignored('model, optimiser and trainer state are always saved'),
  async_save: field(
    bool,
    false,
    'The same as trainer.checkpoint_staging.async: actor and critic are saved together, so either key holds for both.',
  ),
  mbridge_config: ignored('concerns Megatron checkpoints'),
  strict: ignored('what is saved has all weights always'),
};

/** Ulysses sequence parallelism; docs/distributed.md. */
export const ulyssesSize = field(
  count('ranks'),
  1,
  'Neighbouring workers that share micro-batches, of so many times ..._max_token_len_per_gpu tokens: a divisor of the workers and ' +
    'of the attention heads.',
);

/** How a role is updated from a batch. */
export const updates = {
  ppo_mini_batch_size: field(
    count('sequences'),
    256,
    'Prompts per mini-batch (one optimiser step each), as in verl; x rollout.n sequences.',
  ),
  ppo_micro_batch_size: ignored(DYNAMIC),
  ppo_micro_batch_size_per_gpu: ignored(DYNAMIC),
  use_dynamic_bsz: ignored(DYNAMIC),
  ppo_epochs: field(count('passes'), 1, 'Passes over each batch.'),
  shuffle: fixed([false], 'mini-batches are taken in order, so that runs repeat exactly'),
  data_loader_seed: ignored('mini-batches are taken in order'),
  grad_clip: field(num(0), 1, 'Global gradient norm at which gradients are clipped; 0: not clipped.'),
  loss_agg_mode: field(
    choice(...AGGREGATIONS),
    'token-mean',
    'How per-token losses become one number, over the whole mini-batch.',
  ),
  loss_scale_factor: derived(above(0), 'data.max_response_length', 'Divisor of seq-mean-token-sum-norm.'),
  ulysses_sequence_parallel_size: ulyssesSize,
  use_remove_padding: ignored(NO_PADDING),
  use_fused_kernels: ignored(FUSED),
  checkpoint,
  profiler: roleProfiler(null),
};

const Z_LOSS = 'Mixture of experts: weight of the z-loss of the routers.';

/** Of the role whose keys are in `section`. */
export const routerZLoss = (section: string) =>
  derived(
    orNull(num(0)),
    `${section}.megatron.override_transformer_config.moe_z_loss_coeff`,
    `${Z_LOSS} null: what that key says, or 0.`,
  );

/** Of a supervised run. */
export const sftRouterZLoss = field(num(0), 0, Z_LOSS);

/** Of a policy. */
export const readImages = field(
  orNull(bool),
  null,
  'Of a model whose language model is a model of its own (Qwen3.5): read its tower for images, too. null: where the data have a column data.image_key.',
);

export const activationOffload = field(
  bool,
  false,
  'The inputs of recomputed blocks on the host, from their forward to their backward. On cpu it saves nothing.',
);

/** What every model directory is asked. */
export const model = {
  tokenizer_path: field(orNull(str), null, 'Directory with tokenizer.json; null: the model directory.'),
  custom_chat_template: field(orNull(str), null, 'Jinja chat template that replaces the tokenizer’s.'),
  enable_gradient_checkpointing: field(bool, true, 'Recompute activations in the backward pass.'),
  enable_activation_offload: activationOffload,
  gradient_checkpointing_kwargs: ignored('enable_gradient_checkpointing says all'),
  trust_remote_code: ignored('models are data: no code is run from a model directory'),
  external_lib: fixed([null], 'no Python is involved'),
  override_config: overrideConfig,
  hf_config_path: fixed([null], 'config.json is read from the model directory'),
  generation_config: ignored('sampling follows actor_rollout_ref.rollout'),
  tiled_mlp: ignored('memory is bounded by the packing capacity'),
  mtp,
  use_remove_padding: ignored(NO_PADDING),
  use_fused_kernels: ignored(FUSED),
  fused_kernel_options: ignored(FUSED),
  use_liger: ignored(FUSED),
  use_shm: ignored('weights are read once per worker'),
  ...lora,
};
