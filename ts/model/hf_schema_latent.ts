import { z } from 'zod';
import {
  bool,
  count,
  int,
  layerIndex,
  layerTypes,
  maybeInt,
  maybeNone,
  real,
  text,
  tokenIds,
} from './hf_fields';
import { decoder } from './hf_schema_parts';

// Families with latent attention.

export const deepseek = z.object({
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

/** Pairs of numbers turn whatever rope_interleave is. */
export const deepseek2 = deepseek.omit({ rope_interleave: true }).extend({
  vocab_size: int(102400, 'vocabulary'),
  hidden_size: int(4096, 'width'),
  intermediate_size: int(11008, 'width'),
  num_hidden_layers: int(32, 'layers'),
  num_attention_heads: int(32, 'heads'),
  num_key_value_heads: maybeInt('heads'),
  max_position_embeddings: int(2048, 'positions'),
  topk_method: text('greedy'),
  routed_scaling_factor: real(1),
  n_group: maybeInt('expertBlocks'),
  topk_group: maybeInt('expertBlocks'),
  moe_intermediate_size: int(1407, 'width'),
  num_experts_per_tok: count('expertBlocks'),
  n_routed_experts: int(64, 'expertBlocks'),
  n_shared_experts: int(2, 'expertBlocks'),
  first_k_dense_replace: layerIndex.nullish().transform((v) => v ?? 0),
  norm_topk_prob: bool(false),
});

/** Youtu-LLM: the attention of DeepSeek-V3 alone. */
export const youtu = deepseek
  .omit({
    routed_scaling_factor: true,
    n_group: true,
    topk_group: true,
    moe_intermediate_size: true,
    num_experts_per_tok: true,
    n_routed_experts: true,
    n_shared_experts: true,
    first_k_dense_replace: true,
    norm_topk_prob: true,
  })
  .extend({
    vocab_size: int(128256, 'vocabulary'),
    hidden_size: int(2048, 'width'),
    intermediate_size: int(6144, 'width'),
    num_hidden_layers: int(32, 'layers'),
    num_attention_heads: int(16, 'heads'),
    num_key_value_heads: maybeNone(16, 'heads'),
    max_position_embeddings: int(131072, 'positions'),
    tie_word_embeddings: bool(true),
    eos_token_id: tokenIds.transform((v) => v ?? 128001),
  });

/** GLM-4.7-Flash: DeepSeek-V3 with other sizes, which says layer by layer where it has experts. */
export const glm4Lite = deepseek.extend({
  vocab_size: int(154880, 'vocabulary'),
  hidden_size: int(2048, 'width'),
  intermediate_size: int(10240, 'width'),
  num_hidden_layers: int(47, 'layers'),
  num_attention_heads: int(20, 'heads'),
  num_key_value_heads: maybeNone(20, 'heads'),
  max_position_embeddings: int(202752, 'positions'),
  rms_norm_eps: real(1e-5),
  q_lora_rank: maybeNone(768, 'width'),
  qk_nope_head_dim: int(192, 'headDim'),
  v_head_dim: int(256, 'headDim'),
  routed_scaling_factor: real(1.8),
  n_group: int(1, 'expertBlocks'),
  topk_group: int(1, 'expertBlocks'),
  moe_intermediate_size: int(1536, 'width'),
  num_experts_per_tok: int(4, 'expertBlocks'),
  n_routed_experts: int(64, 'expertBlocks'),
  first_k_dense_replace: layerIndex.nullish().transform((v) => v ?? null),
  mlp_layer_types: layerTypes,
});
