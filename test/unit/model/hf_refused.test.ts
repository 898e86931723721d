import { resolve, small } from './small_config';

describe('no model is like that', () => {
  test.each<[object, RegExp]>([
    [{ model_type: 'llama', rope_theta: -2 }, /rope_theta: .*, got -2/],
    [{ num_hidden_layers: 1e9 }, /num_hidden_layers: .*<=4096, got 1000000000/],
    [{ num_hidden_layers: 2 ** 40 }, /num_hidden_layers: .*<=4096/],
    [{ hidden_size: 2 ** 31 }, /hidden_size: .*<=1048576, got 2147483648/],
    [{ hidden_size: 1e12 }, /hidden_size: .*<=1048576/],
    [{ intermediate_size: 1e12 }, /intermediate_size: .*<=1048576/],
    [{ head_dim: 1e10 }, /head_dim: .*<=65536/],
    [{ vocab_size: 1e12 }, /vocab_size: .*<=16777216/],
    [{ num_attention_heads: 1e9, num_key_value_heads: 1e9 }, /num_attention_heads: .*<=65536/],
    [{ max_position_embeddings: 1e15 }, /max_position_embeddings: .*<=2147483647/],
    [{ rms_norm_eps: Number.POSITIVE_INFINITY }, /rms_norm_eps: .*expected number/],
    [
      { model_type: 'mixtral', num_hidden_layers: 4096, num_local_experts: 4096, num_experts_per_tok: 2 },
      /4096 layers of 4096 experts: expected at most 1048576 experts/,
    ],
    [{ model_type: 'qwen3_moe', num_experts: 1e9 }, /num_experts: .*<=1048576/],
    [{ model_type: 'gpt2', n_layer: 1e9 }, /n_layer: .*<=4096/],
    [{ rope_scaling: { type: 'linear', factor: 1e300 } }, /give .* positions: expected at most 2147483647/],
    [
      { rope_parameters: { rope_type: 'yarn', rope_theta: 1, factor: 2 } },
      /RoPE parameters give frequencies that are not finite numbers > 0/,
    ],
  ])('%j', (raw, message) => {
    const act = (): unknown => resolve({ ...small, model_type: 'llama', ...raw });
    expect(act).toThrow(message);
    expect(act).toThrow(expect.objectContaining({ code: 'INVALID_MODEL' }));
  });
});

describe('what is not supported is named with what is', () => {
  test.each<[object, RegExp]>([
    [{ model_type: 'bert' }, /model_type "bert" is not supported; supported: llama, mistral, .*gpt2/],
    [{}, /model_type \(missing\)/],
    [
      { ...small, model_type: 'llama', rope_scaling: { rope_type: 'proportional', factor: 2 } },
      /rope_scaling.rope_type "proportional".*supported: default, linear, dynamic, llama3, yarn, longrope/,
    ],
    [
      { ...small, model_type: 'llama', rope_scaling: { type: 'dynamic' } },
      /rope_scaling.factor is missing, rope type 'dynamic' needs it/,
    ],
    [
      { ...small, model_type: 'llama', rope_scaling: { type: 'llama3', factor: 2 } },
      /rope_scaling.low_freq_factor is missing/,
    ],
    [
      { ...small, model_type: 'llama', rope_scaling: { type: 'linear', factor: 'x' } },
      /rope_scaling.factor: .*expected number/i,
    ],
    [
      { ...small, model_type: 'llama', rope_parameters: { full_attention: { rope_type: 'default' } } },
      /per layer type/,
    ],
    [{ ...small, model_type: 'llama', partial_rotary_factor: 0.5 }, /partial_rotary_factor 0.5/],
    [
      { ...small, model_type: 'llama', hidden_act: 'mish' },
      /hidden_act "mish" is not supported; supported: silu/,
    ],
    [{ ...small, model_type: 'llama', quantization_config: { bits: 4 } }, /quantization_config: quantised/],
    [{ ...small, model_type: 'llama', is_causal: false }, /is_causal: attention that looks ahead/],
    [{ ...small, model_type: 'qwen3', is_causal: null }, /is_causal: attention that looks ahead/],
    [{ ...small, model_type: 'llama', per_layer_config: { 1: { head_dim: 8 } } }, /per_layer_config: layers/],
    [
      { ...small, model_type: 'llama', transformers_weights: 'a.safetensors' },
      /transformers_weights: weights/,
    ],
    [{ ...small, model_type: 'llama', hidden_size: '64' }, /hidden_size: .*expected number/i],
    [
      { ...small, model_type: 'llama', num_key_value_heads: 3 },
      /num_attention_heads 4 does not divide by num_key_value_heads 3/,
    ],
    [{ ...small, model_type: 'llama', head_dim: 15 }, /head_dim 15 is odd/],
    [{ ...small, model_type: 'gemma', use_bidirectional_attention: true }, /use_bidirectional_attention/],
    [{ ...small, model_type: 'gemma2', use_bidirectional_attention: true }, /use_bidirectional_attention/],
    [
      { ...small, model_type: 'gemma', hidden_activation: 'silu' },
      /hidden_activation "silu" and hidden_act "gelu_pytorch_tanh": expected the same/,
    ],
    [
      { ...small, model_type: 'mistral', layer_types: ['full_attention'] },
      /layer_types: model_type 'mistral'/,
    ],
    [
      { ...small, model_type: 'qwen3', layer_types: ['full_attention'] },
      /layer_types has 1 entries but the model has 4/,
    ],
    [
      { ...small, model_type: 'mixtral', num_experts_per_tok: 9 },
      /num_experts_per_tok 9 exceeds the 8 experts/,
    ],
    [{ model_type: 'gpt2', scale_attn_by_inverse_layer_idx: true }, /scale_attn_by_inverse_layer_idx/],
  ])('%j', (raw, message) => {
    expect(() => resolve(raw)).toThrow(message);
    expect(() => resolve(raw)).toThrow(expect.objectContaining({ code: 'INVALID_MODEL' }));
  });
});
