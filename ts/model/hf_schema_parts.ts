// What families have in common of a config.json (hf_schema.ts).
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
  real,
  slidingWindow,
  text,
  tokenIds,
} from './hf_fields';

export const decoder = {
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

export const qwenWindow = {
  use_sliding_window: bool(false),
  // transformers writes 0 where there is no window.
  sliding_window: z
    .number()
    .int()
    .min(0)
    .max(MODEL_LIMITS.positions)
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? 4096 : v === 0 ? null : v)),
};

export const expertCount = (d: number) =>
  z
    .number()
    .int()
    .min(0)
    .max(MODEL_LIMITS.expertBlocks)
    .nullish()
    .transform((v) => v ?? d);

/** Which layers have experts, and how their weights are normalised. */
export const sparse = {
  decoder_sparse_step: int(1, 'positions'),
  norm_topk_prob: bool(false),
  mlp_only_layers: z
    .array(layerIndex)
    .nullish()
    .transform((v) => v ?? []),
};

/** DeepSeek-V3's router. */
export const deepseekExperts = {
  routed_scaling_factor: real(1),
  n_group: int(1, 'expertBlocks'),
  topk_group: int(1, 'expertBlocks'),
};

export const qwen2 = z.object({
  ...decoder,
  ...qwenWindow,
  vocab_size: int(151936, 'vocabulary'),
  intermediate_size: int(22016, 'width'),
  num_key_value_heads: maybeNone(32, 'heads'),
  max_position_embeddings: int(32768, 'positions'),
  max_window_layers: layerIndex.nullish().transform((v) => v ?? 28),
  layer_types: layerTypes,
});

/** LFM2, and what its mixtures of experts have of it. */
export const lfm2 = z.object({
  vocab_size: int(65536, 'vocabulary'),
  hidden_size: int(2560, 'width'),
  intermediate_size: int(12288, 'width'),
  num_hidden_layers: int(32, 'layers'),
  num_attention_heads: int(32, 'heads'),
  num_key_value_heads: int(8, 'heads'),
  head_dim: maybeInt('headDim'),
  max_position_embeddings: int(128_000, 'positions'),
  norm_eps: real(1e-5),
  tie_word_embeddings: bool(true),
  // As the first files have it, which goes before the other.
  tie_embedding: z.boolean().nullish(),
  eos_token_id: tokenIds.transform((v) => v ?? 2),
  conv_bias: bool(false),
  conv_L_cache: int(3, 'positions'),
  layer_types: layerTypes,
});

/** Granite 3, and what its mixtures of experts have of it. */
export const granite = z.object({
  ...decoder,
  attention_bias: bool(false),
  mlp_bias: bool(false),
  embedding_multiplier: real(1),
  attention_multiplier: real(1),
  residual_multiplier: real(1),
  logits_scaling: real(1),
});

/** GLM-4 and GLM-4-0414. */
export const glm = z.object({
  ...decoder,
  vocab_size: int(151552, 'vocabulary'),
  intermediate_size: int(13696, 'width'),
  num_hidden_layers: int(40, 'layers'),
  num_key_value_heads: int(2, 'heads'),
  head_dim: int(128, 'headDim'),
  max_position_embeddings: int(131072, 'positions'),
  rms_norm_eps: real(1.5625e-7),
  attention_bias: bool(true),
  eos_token_id: tokenIds.transform((v) => v ?? [151329, 151336, 151338]),
});

/** OLMo 2, and what OLMo 3 has of it. */
export const olmo2 = z.object({
  ...decoder,
  vocab_size: int(50304, 'vocabulary'),
  rms_norm_eps: real(1e-5),
  attention_bias: bool(false),
});

/** EXAONE 4, and what its mixtures of experts have of it. */
export const exaone4 = z.object({
  ...decoder,
  vocab_size: int(102400, 'vocabulary'),
  intermediate_size: int(16384, 'width'),
  num_key_value_heads: int(32, 'heads'),
  rms_norm_eps: real(1e-5),
  sliding_window: slidingWindow(4096),
  // A text of it, as published files have one, says nothing: layer_types does.
  sliding_window_pattern: z
    .union([count('layers'), z.literal(0), z.string()])
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? 4 : v)),
  layer_types: layerTypes,
});

/** GLM-4.5. */
export const glm4Moe = z.object({
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
});

/** The language models of GLM-4.1V and of GLM-4.5V. */
export const glm4vText = z.object({
  ...decoder,
  vocab_size: int(151552, 'vocabulary'),
  intermediate_size: int(13696, 'width'),
  num_hidden_layers: int(40, 'layers'),
  num_key_value_heads: maybeNone(2, 'heads'),
  max_position_embeddings: int(32768, 'positions'),
  rms_norm_eps: real(1e-5),
});
export const glm4vMoeText = glm4Moe.omit({ use_qk_norm: true }).extend({
  vocab_size: int(151424, 'vocabulary'),
  max_position_embeddings: int(65536, 'positions'),
  attention_bias: bool(true),
});

/** Their tower: rows that it gives are as wide as its layers' MLPs inside, and intermediate_size is that of its merger. */
export const glmTower = z.object({
  depth: int(24, 'layers'),
  hidden_size: int(1536, 'width'),
  hidden_act: text('silu'),
  attention_bias: bool(false),
  intermediate_size: int(13696, 'width'),
  num_heads: int(12, 'heads'),
  in_channels: z.literal(3).nullish(),
  image_size: int(336, 'positions'),
  patch_size: int(14, 'headDim'),
  rms_norm_eps: real(1e-5),
  spatial_merge_size: int(2, 'headDim'),
  temporal_patch_size: int(2, 'headDim'),
  out_hidden_size: int(4096, 'width'),
  rope_parameters: z.object({ rope_theta: z.number().positive().nullish() }).nullish(),
});

/** Qwen3-Next and Qwen3.5: heads of the gated delta rule, and which layers have it. */
export const gatedDelta = {
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

/** The language models of Qwen3.5. */
export const qwen35 = z.object({
  ...gatedDelta,
  vocab_size: int(248320, 'vocabulary'),
  intermediate_size: int(12288, 'width'),
  num_key_value_heads: int(4, 'heads'),
});

export const qwen35Moe = z.object({
  ...gatedDelta,
  vocab_size: int(248320, 'vocabulary'),
  hidden_size: int(2048, 'width'),
  num_hidden_layers: int(40, 'layers'),
  moe_intermediate_size: int(512, 'width'),
  shared_expert_intermediate_size: int(512, 'width'),
  num_experts_per_tok: int(8, 'expertBlocks'),
  num_experts: expertCount(256),
});

/** The tower that reads images, of Qwen3-VL and Qwen3.5. */
const tower = {
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
  rope_parameters: z.object({ rope_theta: z.number().positive().nullish() }).nullish(),
};

/** Qwen3-VL's: features from inside it are added behind the first layers of the decoder. */
export const deepTower = z.object({
  ...tower,
  deepstack_visual_indexes: z
    .array(layerIndex)
    .nullish()
    .transform((v) => v ?? [8, 16, 24]),
});

/** Qwen3.5's: nothing of it is added behind layers of the decoder, though published files name the key. */
export const plainTower = z.object({
  ...tower,
  deepstack_visual_indexes: z
    .array(layerIndex)
    .max(0)
    .nullish()
    .transform((): number[] => []),
});

/** The language model of Qwen2-VL and Qwen2.5-VL. */
export const qwen25 = qwen2.extend({
  vocab_size: int(152064, 'vocabulary'),
  hidden_size: int(8192, 'width'),
  intermediate_size: int(29568, 'width'),
  num_hidden_layers: int(80, 'layers'),
  num_attention_heads: int(64, 'heads'),
  num_key_value_heads: maybeNone(8, 'heads'),
  rms_norm_eps: real(1e-5),
  max_window_layers: layerIndex.nullish().transform((v) => v ?? 80),
});

/** The tower of the first. */
export const firstTower = z.object({
  depth: int(32, 'layers'),
  embed_dim: int(1280, 'width'),
  hidden_size: int(3584, 'width'),
  hidden_act: text('quick_gelu'),
  mlp_ratio: int(4, 'headDim'),
  num_heads: int(16, 'heads'),
  in_channels: z.literal(3).nullish(),
  patch_size: int(14, 'headDim'),
  spatial_merge_size: int(2, 'headDim'),
  temporal_patch_size: int(2, 'headDim'),
  rope_parameters: z.object({ rope_theta: z.number().positive().nullish() }).nullish(),
});

/** And of the second. */
export const windowTower = z.object({
  depth: int(32, 'layers'),
  hidden_size: int(3584, 'width'),
  hidden_act: text('silu'),
  intermediate_size: int(3420, 'width'),
  num_heads: int(16, 'heads'),
  in_channels: z.literal(3).nullish(),
  patch_size: int(14, 'headDim'),
  spatial_merge_size: int(2, 'headDim'),
  temporal_patch_size: int(2, 'headDim'),
  window_size: int(112, 'positions'),
  out_hidden_size: int(3584, 'width'),
  fullatt_block_indexes: z
    .array(layerIndex)
    .nullish()
    .transform((v) => v ?? [7, 15, 23, 31]),
  rope_parameters: z.object({ rope_theta: z.number().positive().nullish() }).nullish(),
});

/** What stands beside decoder and tower. */
export const besideTower = (imageToken: number) => ({
  image_token_id: layerIndex.nullish().transform((v) => v ?? imageToken),
  tie_word_embeddings: z.boolean().nullish(),
  eos_token_id: tokenIds,
});
