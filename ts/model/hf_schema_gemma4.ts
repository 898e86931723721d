// config.json of Gemma 4's language model (hf_schema.ts).
import { z } from 'zod';
import { bool, count, int, layerTypes, maybeInt, orNone, text } from './hf_fields';
import { decoder } from './hf_schema_parts';

/** As transformers saves what differs between layers: by number ("05" of ten layers or more), what is another than elsewhere. */
const perLayer = z
  .record(
    z.string().regex(/^\d+$/),
    z.strictObject({ head_dim: count('headDim').optional(), num_key_value_heads: count('heads').optional() }),
  )
  .nullish()
  .transform((v) =>
    v === undefined || v === null
      ? null
      : new Map(Object.entries(v).map(([layer, own]) => [Number(layer), own] as const)),
  );

const none = (most: Parameters<typeof count>[0]) =>
  z
    .union([z.literal(0), count(most)])
    .nullish()
    .transform((v) => v ?? 0);

export const gemma4Text = z.object({
  ...decoder,
  vocab_size: int(262144, 'vocabulary'),
  hidden_size: int(2304, 'width'),
  intermediate_size: int(9216, 'width'),
  num_hidden_layers: int(30, 'layers'),
  num_attention_heads: int(8, 'heads'),
  num_key_value_heads: int(4, 'heads'),
  head_dim: int(256, 'headDim'),
  global_head_dim: int(512, 'headDim'),
  num_global_key_value_heads: maybeInt('heads'),
  per_layer_config: perLayer,
  hidden_activation: text('gelu_pytorch_tanh'),
  max_position_embeddings: int(131072, 'positions'),
  tie_word_embeddings: bool(true),
  attention_bias: bool(false),
  attention_k_eq_v: bool(false),
  sliding_window: int(512, 'positions'),
  layer_types: layerTypes,
  final_logit_softcapping: orNone(null),
  use_bidirectional_attention: text('vision'),
  vocab_size_per_layer_input: int(262144, 'vocabulary'),
  hidden_size_per_layer_input: z
    .union([z.literal(0), count('width')])
    .nullable()
    .optional()
    .transform((v) => (v === undefined ? 256 : (v ?? 0))),
  num_kv_shared_layers: none('layers'),
  use_double_wide_mlp: bool(false),
  enable_moe_block: bool(false),
  num_experts: maybeInt('expertBlocks'),
  top_k_experts: maybeInt('expertBlocks'),
  moe_intermediate_size: maybeInt('width'),
});
