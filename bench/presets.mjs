import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);

/**
 * Model shapes by name: published ones of Qwen2.5 and Qwen3, and small ones of the same families for CPUs: cpu-100m has a vocabulary like
 * theirs, so that the head outweighs the decoder; cpu-linear has the layers of
 * Qwen3.5 (three of four linear attention), as wide as cpu-40m; cpu-mamba has as many of Nemotron-H (three of four Mamba 2), cpu-conv of LFM2 (five of eight short convolutions), cpu-gemma4 of Gemma 4 E2B (a quarter sees all, half share keys, each gets numbers of tokens); cpu-moe has the experts of Qwen3-30B-A3B at half the width, half as many.
 */
const SHAPES = {
  'cpu-40m': {
    family: 'qwen2',
    hidden: 512,
    layers: 8,
    heads: 8,
    kvHeads: 2,
    ffn: 1536,
    vocab: 32000,
    theta: 1e4,
  },
  'cpu-100m': {
    family: 'qwen2',
    hidden: 512,
    layers: 8,
    heads: 8,
    kvHeads: 2,
    ffn: 1536,
    vocab: 151936,
    theta: 1e4,
  },
  'cpu-moe': {
    family: 'qwen3_moe',
    hidden: 1024,
    layers: 2,
    heads: 8,
    kvHeads: 2,
    ffn: 384,
    experts: 64,
    chosen: 8,
    vocab: 4096,
  },
  'cpu-linear': {
    family: 'qwen3_5_text',
    hidden: 512,
    layers: 8,
    heads: 4,
    kvHeads: 2,
    ffn: 1536,
    keyHeads: 4,
    valueHeads: 8,
    vocab: 32000,
    theta: 1e4,
  },
  'cpu-mamba': {
    family: 'nemotron_h',
    hidden: 512,
    layers: 16,
    blocks: 'M-M-M-*-M-M-M-*-',
    heads: 4,
    kvHeads: 2,
    ffn: 2304,
    groups: 4,
    mambaHeads: 16,
    vocab: 32000,
    tied: false,
  },
  'cpu-conv': {
    family: 'lfm2',
    hidden: 512,
    layers: 8,
    kinds: ['conv', 'conv', 'full_attention', 'conv', 'conv', 'full_attention', 'conv', 'full_attention'],
    heads: 8,
    kvHeads: 2,
    ffn: 1536,
    vocab: 32000,
  },
  'cpu-gemma4': {
    family: 'gemma4_text',
    hidden: 512,
    layers: 8,
    heads: 8,
    kvHeads: 2,
    ffn: 1536,
    vocab: 32000,
    sharing: 4,
    numbers: 64,
  },
  'qwen2.5-0.5b': {
    family: 'qwen2',
    hidden: 896,
    layers: 24,
    heads: 14,
    kvHeads: 2,
    ffn: 4864,
    vocab: 151936,
  },
  'qwen3-0.6b': {
    family: 'qwen3',
    hidden: 1024,
    layers: 28,
    heads: 16,
    kvHeads: 8,
    ffn: 3072,
    vocab: 151936,
  },
  'qwen3-1.7b': {
    family: 'qwen3',
    hidden: 2048,
    layers: 28,
    heads: 16,
    kvHeads: 8,
    ffn: 6144,
    vocab: 151936,
  },
  'qwen3-4b': { family: 'qwen3', hidden: 2560, layers: 36, heads: 32, kvHeads: 8, ffn: 9728, vocab: 151936 },
  'qwen2.5-7b': {
    family: 'qwen2',
    hidden: 3584,
    layers: 28,
    heads: 28,
    kvHeads: 4,
    ffn: 18944,
    vocab: 152064,
    tied: false,
  },
};

export const PRESETS = Object.keys(SHAPES);

/** Standard deviation of the random weights. */
export const INIT_STD = 0.04;

const ARCHITECTURES = {
  qwen2: 'Qwen2ForCausalLM',
  qwen3: 'Qwen3ForCausalLM',
  qwen3_moe: 'Qwen3MoeForCausalLM',
  qwen3_5_text: 'Qwen3_5ForCausalLM',
  nemotron_h: 'NemotronHForCausalLM',
  lfm2: 'Lfm2ForCausalLM',
  gemma4_text: 'Gemma4ForCausalLM',
};

const experts = ({ experts, chosen, ffn }) => ({
  num_experts: experts,
  num_experts_per_tok: chosen,
  moe_intermediate_size: ffn,
  norm_topk_prob: true,
  decoder_sparse_step: 1,
});

const linearAttention = ({ layers, keyHeads, valueHeads }) => ({
  layer_types: Array.from({ length: layers }, (_, i) =>
    i % 4 === 3 ? 'full_attention' : 'linear_attention',
  ),
  linear_num_key_heads: keyHeads,
  linear_num_value_heads: valueHeads,
  linear_key_head_dim: 128,
  linear_value_head_dim: 128,
  linear_conv_kernel_dim: 4,
});

/** The sizes of heads and states are those of Nemotron 3 Nano. */
const mamba2 = ({ blocks, groups, mambaHeads }) => ({
  hybrid_override_pattern: blocks,
  n_groups: groups,
  mamba_num_heads: mambaHeads,
  mamba_head_dim: 64,
  ssm_state_size: 128,
});

const shortConvolutions = ({ kinds }) => ({
  layer_types: kinds,
  conv_L_cache: 3,
  block_auto_adjust_ff_dim: false,
});

const gemma4 = ({ layers, vocab, sharing, numbers }) => ({
  layer_types: Array.from({ length: layers }, (_, i) =>
    i % 4 === 3 ? 'full_attention' : 'sliding_attention',
  ),
  sliding_window: 512,
  global_head_dim: 128,
  num_kv_shared_layers: sharing,
  hidden_size_per_layer_input: numbers,
  vocab_size_per_layer_input: vocab,
});

/** Families whose heads have hidden_size / num_attention_heads numbers; those of the others have 128. */
const EVEN_HEADS = ['qwen2', 'lfm2', 'gemma4_text'];

/** config.json of a preset. */
export function modelConfig(name) {
  const shape = SHAPES[name];
  if (shape === undefined)
    throw new Error(`expected a preset, one of ${Object.keys(SHAPES).join(', ')}, got ${name}`);
  return {
    architectures: [ARCHITECTURES[shape.family]],
    model_type: shape.family,
    hidden_size: shape.hidden,
    num_hidden_layers: shape.layers,
    num_attention_heads: shape.heads,
    num_key_value_heads: shape.kvHeads,
    head_dim: EVEN_HEADS.includes(shape.family) ? shape.hidden / shape.heads : 128,
    intermediate_size: shape.ffn,
    ...(shape.experts ? experts(shape) : {}),
    ...(shape.keyHeads ? linearAttention(shape) : {}),
    ...(shape.mambaHeads ? mamba2(shape) : {}),
    ...(shape.kinds ? shortConvolutions(shape) : {}),
    ...(shape.sharing ? gemma4(shape) : {}),
    vocab_size: shape.vocab,
    hidden_act: 'silu',
    rms_norm_eps: 1e-6,
    rope_theta: shape.theta ?? 1e6,
    max_position_embeddings: 131072,
    tie_word_embeddings: shape.tied ?? true,
    use_sliding_window: false,
    initializer_range: INIT_STD,
    torch_dtype: name.startsWith('cpu-') ? 'float32' : 'bfloat16',
  };
}

/** Names and shapes of the tensors of a model, in Hugging Face's layout; a tied head is not stored. */
export function modelTensors(config) {
  const { resolveModelConfig } = require('../dist/model/hf_config.js');
  const { tensorMapping } = require('../dist/model/tensor_names.js');
  const { native } = resolveModelConfig(config, 'lm', 'config.json');
  return tensorMapping(native).map(({ hf, shape }) => [hf, shape]);
}
