import { z } from 'zod';
import { MODEL_LIMITS } from '../base/limits';
import {
  bool,
  count,
  int,
  layerIndex,
  layerTypes,
  maybeInt,
  maybeNone,
  orNone,
  real,
  text,
  tokenIds,
} from './hf_fields';

// config.json of each supported family, with the defaults of its Hugging Face configuration class (transformers 5.17).
// Where `null` means "use the default" the default is filled in; where it means "none" it stays null.

const decoder = {
  vocab_size: int(32000, 'vocabulary'),
  hidden_size: int(4096, 'width'),
  intermediate_size: int(11008, 'width'),
  num_hidden_layers: int(32, 'layers'),
  num_attention_heads: int(32, 'heads'),
  num_key_value_heads: maybeInt('heads'),
  head_dim: maybeInt('headDim'),
  hidden_act: text('silu'),
  max_position_embeddings: int(2048, 'positions'),
  rms_norm_eps: real(1e-6),
  tie_word_embeddings: bool(false),
  eos_token_id: tokenIds,
};

const qwenWindow = {
  use_sliding_window: bool(false),
  // transformers writes 0 where there is no window.
  sliding_window: z
    .number()
    .min(0)
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? 4096 : v === 0 ? null : v)),
};

const expertCount = (d: number) =>
  z
    .number()
    .int()
    .min(0)
    .max(MODEL_LIMITS.expertBlocks)
    .nullish()
    .transform((v) => v ?? d);

/** Which layers have experts, and how their weights are normalised. */
const sparse = {
  decoder_sparse_step: int(1, 'positions'),
  norm_topk_prob: bool(false),
  mlp_only_layers: z
    .array(layerIndex)
    .nullish()
    .transform((v) => v ?? []),
};

/** DeepSeek-V3's router. */
const deepseekExperts = {
  routed_scaling_factor: real(1),
  n_group: int(1, 'expertBlocks'),
  topk_group: int(1, 'expertBlocks'),
};

const qwen2 = z.object({
  ...decoder,
  ...qwenWindow,
  vocab_size: int(151936, 'vocabulary'),
  intermediate_size: int(22016, 'width'),
  num_key_value_heads: maybeNone(32, 'heads'),
  max_position_embeddings: int(32768, 'positions'),
  max_window_layers: layerIndex.nullish().transform((v) => v ?? 28),
  layer_types: layerTypes,
});

const deepseek = z.object({
  ...decoder,
  vocab_size: int(129280, 'vocabulary'),
  hidden_size: int(7168, 'width'),
  intermediate_size: int(18432, 'width'),
  num_hidden_layers: int(61, 'layers'),
  num_attention_heads: int(128, 'heads'),
  num_key_value_heads: maybeNone(128, 'heads'),
  max_position_embeddings: int(4096, 'positions'),
  attention_bias: bool(false),
  q_lora_rank: maybeNone(1536, 'width'),
  kv_lora_rank: int(512, 'width'),
  qk_rope_head_dim: int(64, 'headDim'),
  qk_nope_head_dim: int(128, 'headDim'),
  v_head_dim: int(128, 'headDim'),
  // Not true and there: transformers turns halves.
  rope_interleave: z
    .boolean()
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? true : (v ?? false))),
  routed_scaling_factor: real(2.5),
  n_group: int(8, 'expertBlocks'),
  topk_group: int(4, 'expertBlocks'),
  moe_intermediate_size: int(2048, 'width'),
  num_experts_per_tok: int(8, 'expertBlocks'),
  n_routed_experts: int(256, 'expertBlocks'),
  n_shared_experts: int(1, 'expertBlocks'),
  first_k_dense_replace: layerIndex.nullish().transform((v) => v ?? 3),
  norm_topk_prob: bool(true),
});

/** Qwen3-Next and Qwen3.5: heads of the gated delta rule, and which layers have it. */
const gatedDelta = {
  ...decoder,
  num_attention_heads: int(16, 'heads'),
  num_key_value_heads: int(2, 'heads'),
  head_dim: int(256, 'headDim'),
  max_position_embeddings: int(32768, 'positions'),
  attention_bias: bool(false),
  linear_conv_kernel_dim: int(4, 'positions'),
  linear_key_head_dim: int(128, 'headDim'),
  linear_value_head_dim: int(128, 'headDim'),
  linear_num_key_heads: int(16, 'heads'),
  linear_num_value_heads: int(32, 'heads'),
  layer_types: layerTypes,
  full_attention_interval: int(4, 'layers'),
};

export const schemas = {
  llama: z.object({ ...decoder, attention_bias: bool(false), mlp_bias: bool(false) }),
  mistral: z.object({
    ...decoder,
    intermediate_size: int(14336, 'width'),
    num_key_value_heads: maybeNone(8, 'heads'),
    max_position_embeddings: int(4096 * 32, 'positions'),
    sliding_window: orNone(4096),
    layer_types: layerTypes,
  }),
  qwen2,
  qwen3: z.object({
    ...decoder,
    ...qwenWindow,
    vocab_size: int(151936, 'vocabulary'),
    intermediate_size: int(22016, 'width'),
    head_dim: int(128, 'headDim'),
    num_key_value_heads: maybeNone(32, 'heads'),
    max_position_embeddings: int(32768, 'positions'),
    max_window_layers: layerIndex.nullish().transform((v) => v ?? 28),
    layer_types: layerTypes,
    attention_bias: bool(false),
  }),
  mimo: qwen2,
  smollm3: z.object({
    ...decoder,
    vocab_size: int(128256, 'vocabulary'),
    hidden_size: int(2048, 'width'),
    num_hidden_layers: int(36, 'layers'),
    num_attention_heads: int(16, 'heads'),
    num_key_value_heads: maybeNone(4, 'heads'),
    max_position_embeddings: int(32768, 'positions'),
    tie_word_embeddings: bool(true),
    use_sliding_window: bool(false),
    sliding_window: orNone(null),
    layer_types: layerTypes,
    no_rope_layers: z.array(z.number().int()).nullish(),
    no_rope_layer_interval: int(4, 'layers'),
    attention_bias: bool(false),
    mlp_bias: bool(false),
  }),
  seed_oss: z.object({
    ...decoder,
    vocab_size: int(155136, 'vocabulary'),
    intermediate_size: int(27648, 'width'),
    num_hidden_layers: int(64, 'layers'),
    num_attention_heads: int(80, 'heads'),
    num_key_value_heads: maybeNone(8, 'heads'),
    head_dim: maybeNone(128, 'headDim'),
    max_position_embeddings: int(524288, 'positions'),
    attention_bias: bool(true),
    attention_out_bias: bool(false),
    mlp_bias: bool(false),
  }),
  gemma: z.object({
    ...decoder,
    vocab_size: int(256000, 'vocabulary'),
    hidden_size: int(3072, 'width'),
    intermediate_size: int(24576, 'width'),
    num_hidden_layers: int(28, 'layers'),
    num_attention_heads: int(16, 'heads'),
    num_key_value_heads: int(16, 'heads'),
    head_dim: int(256, 'headDim'),
    hidden_act: text('gelu_pytorch_tanh'),
    hidden_activation: z.string().nullish(),
    max_position_embeddings: int(8192, 'positions'),
    tie_word_embeddings: bool(true),
    attention_bias: bool(false),
    use_bidirectional_attention: bool(false),
  }),
  gemma2: z.object({
    ...decoder,
    vocab_size: int(256000, 'vocabulary'),
    hidden_size: int(2304, 'width'),
    intermediate_size: int(9216, 'width'),
    num_hidden_layers: int(26, 'layers'),
    num_attention_heads: int(8, 'heads'),
    num_key_value_heads: int(4, 'heads'),
    head_dim: int(256, 'headDim'),
    hidden_activation: text('gelu_pytorch_tanh'),
    max_position_embeddings: int(8192, 'positions'),
    tie_word_embeddings: bool(true),
    attention_bias: bool(false),
    query_pre_attn_scalar: real(256),
    sliding_window: orNone(4096),
    layer_types: layerTypes,
    final_logit_softcapping: orNone(30),
    attn_logit_softcapping: orNone(50),
    use_bidirectional_attention: bool(false),
  }),
  gemma3_text: z.object({
    ...decoder,
    vocab_size: int(262208, 'vocabulary'),
    hidden_size: int(2304, 'width'),
    intermediate_size: int(9216, 'width'),
    num_hidden_layers: int(26, 'layers'),
    num_attention_heads: int(8, 'heads'),
    num_key_value_heads: int(4, 'heads'),
    head_dim: int(256, 'headDim'),
    hidden_activation: text('gelu_pytorch_tanh'),
    max_position_embeddings: int(131072, 'positions'),
    tie_word_embeddings: bool(true),
    attention_bias: bool(false),
    query_pre_attn_scalar: real(256),
    sliding_window: orNone(4096),
    sliding_window_pattern: int(6, 'layers'),
    layer_types: layerTypes,
    final_logit_softcapping: orNone(null),
    use_bidirectional_attention: bool(false),
  }),
  phi3: z.object({
    ...decoder,
    vocab_size: int(32064, 'vocabulary'),
    hidden_size: int(3072, 'width'),
    intermediate_size: int(8192, 'width'),
    max_position_embeddings: int(4096, 'positions'),
    original_max_position_embeddings: int(4096, 'positions'),
    rms_norm_eps: real(1e-5),
    sliding_window: orNone(null),
  }),
  mixtral: z.object({
    ...decoder,
    intermediate_size: int(14336, 'width'),
    num_key_value_heads: maybeNone(8, 'heads'),
    max_position_embeddings: int(4096 * 32, 'positions'),
    rms_norm_eps: real(1e-5),
    sliding_window: orNone(null),
    num_experts_per_tok: int(2, 'expertBlocks'),
    num_local_experts: int(8, 'expertBlocks'),
  }),
  qwen2_moe: z.object({
    ...decoder,
    ...qwenWindow,
    max_window_layers: layerIndex.nullish().transform((v) => v ?? 28),
    layer_types: layerTypes,
    vocab_size: int(151936, 'vocabulary'),
    hidden_size: int(2048, 'width'),
    intermediate_size: int(5632, 'width'),
    num_hidden_layers: int(24, 'layers'),
    num_attention_heads: int(16, 'heads'),
    num_key_value_heads: maybeNone(16, 'heads'),
    max_position_embeddings: int(32768, 'positions'),
    qkv_bias: bool(true),
    ...sparse,
    moe_intermediate_size: int(1408, 'width'),
    shared_expert_intermediate_size: int(5632, 'width'),
    num_experts_per_tok: int(4, 'expertBlocks'),
    num_experts: expertCount(60),
  }),
  qwen3_moe: z.object({
    ...decoder,
    ...qwenWindow,
    vocab_size: int(151936, 'vocabulary'),
    hidden_size: int(2048, 'width'),
    intermediate_size: int(6144, 'width'),
    num_hidden_layers: int(24, 'layers'),
    num_key_value_heads: int(4, 'heads'),
    max_position_embeddings: int(32768, 'positions'),
    attention_bias: bool(false),
    ...sparse,
    moe_intermediate_size: int(768, 'width'),
    num_experts_per_tok: int(8, 'expertBlocks'),
    num_experts: expertCount(128),
  }),
  glm4_moe: z.object({
    ...decoder,
    vocab_size: int(151552, 'vocabulary'),
    intermediate_size: int(10944, 'width'),
    num_hidden_layers: int(46, 'layers'),
    num_attention_heads: int(96, 'heads'),
    num_key_value_heads: int(8, 'heads'),
    max_position_embeddings: int(131072, 'positions'),
    rms_norm_eps: real(1e-5),
    attention_bias: bool(false),
    use_qk_norm: bool(false),
    ...deepseekExperts,
    moe_intermediate_size: int(1408, 'width'),
    num_experts_per_tok: int(8, 'expertBlocks'),
    n_routed_experts: int(128, 'expertBlocks'),
    n_shared_experts: int(1, 'expertBlocks'),
    first_k_dense_replace: layerIndex.nullish().transform((v) => v ?? 1),
    norm_topk_prob: bool(true),
  }),
  dots1: z.object({
    ...decoder,
    vocab_size: int(152064, 'vocabulary'),
    hidden_size: int(4608, 'width'),
    intermediate_size: int(10944, 'width'),
    num_hidden_layers: int(62, 'layers'),
    num_key_value_heads: maybeNone(32, 'heads'),
    max_window_layers: layerIndex.nullish().transform((v) => v ?? 62),
    sliding_window: orNone(4096),
    layer_types: layerTypes,
    attention_bias: bool(false),
    ...deepseekExperts,
    moe_intermediate_size: int(1408, 'width'),
    num_experts_per_tok: count('expertBlocks'),
    n_routed_experts: count('expertBlocks'),
    n_shared_experts: count('expertBlocks'),
    first_k_dense_replace: layerIndex.nullish().transform((v) => v ?? 0),
    norm_topk_prob: bool(false),
  }),
  qwen3_next: z.object({
    ...gatedDelta,
    vocab_size: int(151936, 'vocabulary'),
    hidden_size: int(2048, 'width'),
    intermediate_size: int(5632, 'width'),
    num_hidden_layers: int(48, 'layers'),
    ...sparse,
    norm_topk_prob: bool(true),
    moe_intermediate_size: int(512, 'width'),
    shared_expert_intermediate_size: int(512, 'width'),
    num_experts_per_tok: int(10, 'expertBlocks'),
    num_experts: expertCount(512),
  }),
  qwen3_5_text: z.object({
    ...gatedDelta,
    vocab_size: int(248320, 'vocabulary'),
    intermediate_size: int(12288, 'width'),
    num_key_value_heads: int(4, 'heads'),
  }),
  qwen3_5_moe_text: z.object({
    ...gatedDelta,
    vocab_size: int(248320, 'vocabulary'),
    hidden_size: int(2048, 'width'),
    num_hidden_layers: int(40, 'layers'),
    moe_intermediate_size: int(512, 'width'),
    shared_expert_intermediate_size: int(512, 'width'),
    num_experts_per_tok: int(8, 'expertBlocks'),
    num_experts: expertCount(256),
  }),
  deepseek_v3: deepseek,
  kimi_k2: deepseek,
  gpt_oss: z.object({
    ...decoder,
    vocab_size: int(201088, 'vocabulary'),
    hidden_size: int(2880, 'width'),
    intermediate_size: int(2880, 'width'),
    num_hidden_layers: int(36, 'layers'),
    num_attention_heads: int(64, 'heads'),
    num_key_value_heads: maybeNone(8, 'heads'),
    head_dim: maybeNone(64, 'headDim'),
    max_position_embeddings: int(131072, 'positions'),
    rms_norm_eps: real(1e-5),
    sliding_window: maybeNone(128, 'positions'),
    layer_types: layerTypes,
    attention_bias: bool(true),
    num_local_experts: int(128, 'expertBlocks'),
    num_experts_per_tok: int(4, 'expertBlocks'),
    swiglu_alpha: real(1.702),
    swiglu_limit: real(7),
  }),
  qwen3_vl: z.object({
    text_config: z.object({
      ...decoder,
      vocab_size: int(151936, 'vocabulary'),
      intermediate_size: int(22016, 'width'),
      num_key_value_heads: maybeNone(32, 'heads'),
      head_dim: maybeNone(128, 'headDim'),
      max_position_embeddings: int(128000, 'positions'),
      attention_bias: bool(false),
    }),
    vision_config: z.object({
      depth: int(27, 'layers'),
      hidden_size: int(1152, 'width'),
      hidden_act: text('gelu_pytorch_tanh'),
      intermediate_size: int(4304, 'width'),
      num_heads: int(16, 'heads'),
      in_channels: z.literal(3).nullish(),
      patch_size: int(16, 'headDim'),
      spatial_merge_size: int(2, 'headDim'),
      temporal_patch_size: int(2, 'headDim'),
      out_hidden_size: int(3584, 'width'),
      num_position_embeddings: int(2304, 'positions'),
      deepstack_visual_indexes: z
        .array(layerIndex)
        .nullish()
        .transform((v) => v ?? [8, 16, 24]),
      rope_parameters: z.object({ rope_theta: z.number().positive().nullish() }).nullish(),
    }),
    image_token_id: layerIndex.nullish().transform((v) => v ?? 151655),
    tie_word_embeddings: z.boolean().nullish(),
    eos_token_id: tokenIds,
  }),
  gpt2: z.object({
    vocab_size: int(50257, 'vocabulary'),
    n_positions: int(1024, 'positions'),
    n_embd: int(768, 'width'),
    n_layer: int(12, 'layers'),
    n_head: int(12, 'heads'),
    n_inner: maybeInt('width'),
    activation_function: text('gelu_new'),
    layer_norm_epsilon: real(1e-5),
    scale_attn_weights: bool(true),
    scale_attn_by_inverse_layer_idx: bool(false),
    add_cross_attention: bool(false),
    tie_word_embeddings: bool(true),
    eos_token_id: tokenIds,
  }),
};

export type DecoderConfig = z.infer<z.ZodObject<typeof decoder>>;
export type Family = keyof typeof schemas;
export type FamilyConfig<F extends Family> = z.infer<(typeof schemas)[F]>;
export const FAMILIES = Object.keys(schemas) as Family[];

export const isFamily = (value: unknown): value is Family =>
  typeof value === 'string' && Object.hasOwn(schemas, value);
