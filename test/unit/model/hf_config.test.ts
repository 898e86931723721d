import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';

const models = path.join(__dirname, '../../fixtures/conformance/models');
const configOf = (name: string, role = 'actor'): Record<string, unknown> =>
  JSON.parse(readFileSync(path.join(models, name, role, 'config.json'), 'utf8'));
const resolve = (raw: object, head: 'lm' | 'value' = 'lm'): NativeModelConfig =>
  resolveModelConfig(raw, head, 'config.json').native;
const small = { hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, num_hidden_layers: 4 };

describe('conformance models', () => {
  test.each(readdirSync(models))('%s resolves, and its class is the one that saved it', (name) => {
    const actor = configOf(name);
    const critic = configOf(name, 'critic');
    const lm = resolve(actor);
    const value = resolve(critic, 'value');
    const saved = (actor.architectures as string[]).map(
      (of) => of.replace('ForConditionalGeneration', 'ForCausalLM'), // of a model with images the language model
    );
    expect([architectureName(lm)]).toEqual(saved);
    expect([architectureName(value)]).toEqual(critic.architectures);
    expect(lm.slidingWindows).toHaveLength(lm.numLayers);
    expect(value.tiedEmbeddings).toBe(false);
    expect(value.finalSoftcap).toBe(0);
    const names = tensorMapping(lm).map((m) => `${m.hf} ${m.part ?? ''}`.trim());
    expect(new Set(names).size).toBe(names.length);
    expect(names.includes('lm_head.weight')).toBe(!lm.tiedEmbeddings);
  });

  test('traps', () => {
    expect(resolve(configOf('qwen2_tied')).slidingWindows).toEqual([0, 0, 0]); // use_sliding_window: false
    expect(resolve(configOf('qwen2_tied'))).toMatchObject({
      headDim: 14,
      qkvBias: true,
      outputBias: false,
      tiedEmbeddings: true,
    });
    expect(resolve(configOf('mistral_swa')).slidingWindows).toEqual([5, 5]);
    expect(resolve(configOf('qwen3_headdim'))).toMatchObject({ headDim: 24, qkNorm: true, numKvHeads: 2 });
    expect(resolve(configOf('gemma2'))).toMatchObject({
      slidingWindows: [6, 0],
      normUnitOffset: true,
      postNorms: true,
      attentionScale: 24 ** -0.5,
      attentionSoftcap: 8,
      finalSoftcap: 12,
      activation: 'gelu_tanh',
      embeddingScale: Math.sqrt(48),
    });
    expect(resolve(configOf('mixtral'))).toMatchObject({
      headDim: 12,
      moe: {
        numExperts: 4,
        topK: 2,
        intermediateSize: 40,
        normalizeTopK: true,
        sharedIntermediateSize: 0,
      },
      moeLayers: [true, true],
    });
    expect(resolve(configOf('qwen3_moe')).moe).toEqual({
      numExperts: 6,
      topK: 2,
      intermediateSize: 24,
      normalizeTopK: true,
      sharedIntermediateSize: 0,
      sharedGate: true,
      score: 'softmax',
      correctionBias: false,
      groups: 1,
      topGroups: 1,
      biases: false,
      routedScale: 1,
    });
    expect(resolve(configOf('qwen2_moe'))).toMatchObject({
      qkvBias: true,
      outputBias: false,
      qkNorm: false,
      slidingWindows: [0, 0, 0],
      moe: {
        numExperts: 6,
        topK: 2,
        intermediateSize: 24,
        normalizeTopK: false,
        sharedIntermediateSize: 40,
      },
      moeLayers: [true, false, true],
    });
    expect(resolve(configOf('gpt2'))).toMatchObject({
      positions: 'learned',
      norm: 'layer',
      gatedMlp: false,
      intermediateSize: 192,
    });
  });

  test('both spellings of RoPE say the same', () => {
    const hub = {
      ...small,
      model_type: 'llama',
      rope_theta: 5000,
      rope_scaling: { type: 'linear', factor: 2 },
    };
    const five = {
      ...small,
      model_type: 'llama',
      rope_parameters: { rope_theta: 5000, rope_type: 'linear', factor: 2 },
    };
    expect(resolve(hub).ropeInvFreq).toEqual(resolve(five).ropeInvFreq);
    expect(resolve(hub).ropeInvFreq[1]).toBeCloseTo(1 / 5000 ** (2 / 16) / 2, 15);
    expect(resolve(hub).maxPositions).toBe(4096);
  });
});

describe('defaults of the Hugging Face classes', () => {
  test('sliding windows', () => {
    expect(resolve({ ...small, model_type: 'mistral' }).slidingWindows).toEqual([4096, 4096, 4096, 4096]);
    expect(resolve({ ...small, model_type: 'mistral', sliding_window: null }).slidingWindows).toEqual([
      0, 0, 0, 0,
    ]);
    const qwen2 = { ...small, model_type: 'qwen2', use_sliding_window: true, sliding_window: 8 };
    expect(resolve(qwen2).slidingWindows).toEqual([0, 0, 0, 0]); // max_window_layers 28
    expect(resolve({ ...qwen2, max_window_layers: 3 }).slidingWindows).toEqual([0, 0, 0, 8]);
    const types = ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention'];
    expect(resolve({ ...qwen2, layer_types: types }).slidingWindows).toEqual([8, 0, 8, 0]);
    expect(() => resolve({ ...qwen2, use_sliding_window: false, layer_types: types })).toThrow(
      /layer_types\[0\].*no sliding_window/,
    );
    expect(
      resolve({ ...small, model_type: 'qwen3_moe', use_sliding_window: true, sliding_window: 3 })
        .slidingWindows,
    ).toEqual([3, 3, 3, 3]);
    for (const model_type of ['qwen2', 'qwen3', 'qwen2_moe', 'qwen3_moe'])
      expect(resolve({ ...small, model_type, sliding_window: 0 }).slidingWindows).toEqual([0, 0, 0, 0]);
  });

  test.each(['mistral', 'qwen2', 'phi3', 'gemma2', 'gemma3_text', 'mixtral', 'gpt_oss', 'olmo3'])(
    'a window of %s is a whole number of positions',
    (model_type) => {
      for (const sliding_window of [2.5, -1, 2 ** 31])
        expect(() => resolve({ ...small, model_type, sliding_window })).toThrow(/sliding_window/);
    },
  );

  test('an empty quantization_config quantises nothing', () => {
    const plain = { ...small, model_type: 'llama' };
    expect(resolve({ ...plain, quantization_config: {} })).toEqual(resolve(plain));
    expect(resolve({ ...plain, is_causal: true, per_layer_config: null })).toEqual(resolve(plain));
  });

  test('llama 2, mistral, qwen3, seed_oss, gemma, gemma2, gpt2', () => {
    expect(resolve({ model_type: 'llama' })).toMatchObject({
      vocabSize: 32000,
      numKvHeads: 32,
      headDim: 128,
      maxPositions: 2048,
    });
    expect(resolve({ model_type: 'mistral' })).toMatchObject({ numKvHeads: 8, maxPositions: 131072 });
    expect(resolve({ ...small, model_type: 'qwen3' }).headDim).toBe(128);
    for (const model_type of ['qwen2', 'qwen3']) {
      const heads = { model_type, num_attention_heads: 64 };
      expect(resolve(heads).numKvHeads).toBe(32);
      expect(resolve({ ...heads, num_key_value_heads: null }).numKvHeads).toBe(64);
    }
    expect(resolve({ model_type: 'seed_oss' })).toMatchObject({
      numHeads: 80,
      numKvHeads: 8,
      headDim: 128,
      qkvBias: true,
      outputBias: false,
      mlpBias: false,
      maxPositions: 524288,
    });
    const narrow = { model_type: 'seed_oss', head_dim: null, num_key_value_heads: null };
    expect(resolve({ ...narrow, hidden_size: 5120 })).toMatchObject({ headDim: 64, numKvHeads: 80 });
    expect(resolve({ model_type: 'gemma' })).toMatchObject({
      headDim: 256,
      numKvHeads: 16,
      tiedEmbeddings: true,
      normUnitOffset: true,
      postNorms: false,
      attentionScale: 1 / 16,
      embeddingScale: Math.sqrt(3072),
      activation: 'gelu_tanh',
    });
    expect(resolve({ model_type: 'gemma2' })).toMatchObject({
      numLayers: 26,
      tiedEmbeddings: true,
      attentionScale: 1 / 16,
    });
    expect(resolve({ model_type: 'gpt2' })).toMatchObject({
      vocabSize: 50257,
      maxPositions: 1024,
      tiedEmbeddings: true,
      mlpBias: true,
    });
    expect(resolve({ model_type: 'mixtral' }).ropeInvFreq[1]).toBeCloseTo(1e6 ** (-2 / 128), 15);
  });

  test('gelu in a config.json of Gemma is the approximation, as transformers has it', () => {
    for (const keys of [
      { hidden_act: 'gelu', hidden_activation: null },
      { hidden_act: 'gelu', hidden_activation: 'gelu_pytorch_tanh' },
      { hidden_activation: 'gelu' },
      { hidden_act: 'gelu_pytorch_tanh' },
    ])
      expect(resolve({ ...small, model_type: 'gemma', ...keys }).activation).toBe('gelu_tanh');
    expect(resolve({ ...small, model_type: 'gemma', hidden_act: 'silu' }).activation).toBe('silu');
  });

  test('the other names of GPT-2’s keys', () => {
    const own = { model_type: 'gpt2', n_embd: 48, n_layer: 2, n_head: 4, n_positions: 64 };
    const other = {
      model_type: 'gpt2',
      hidden_size: 48,
      num_hidden_layers: 2,
      num_attention_heads: 4,
      max_position_embeddings: 64,
    };
    expect(resolve(other)).toEqual(resolve(own));
    expect(() => resolve({ ...own, num_attention_heads: 12 })).toThrow(
      /num_attention_heads 12 and n_head 4: expected the same/,
    );
  });

  test('eos ids may be one or several', () => {
    expect(
      resolveModelConfig({ ...small, model_type: 'llama', eos_token_id: [1, 2] }, 'lm', 'x').eosTokenIds,
    ).toEqual([1, 2]);
    expect(
      resolveModelConfig({ ...small, model_type: 'llama', eos_token_id: 7 }, 'lm', 'x').eosTokenIds,
    ).toEqual([7]);
    expect(
      resolveModelConfig({ ...small, model_type: 'llama', eos_token_id: null }, 'lm', 'x').eosTokenIds,
    ).toEqual([]);
  });

  test('the windows of qwen2_moe: every other layer, below max_window_layers', () => {
    const window = { ...small, model_type: 'qwen2_moe', num_hidden_layers: 6, max_window_layers: 4 };
    const windows = (more: object) => resolve({ ...window, ...more }).slidingWindows;
    expect(windows({ use_sliding_window: true, sliding_window: 3 })).toEqual([3, 0, 3, 0, 0, 0]);
    expect(windows({ use_sliding_window: false, sliding_window: 3 })).toEqual([0, 0, 0, 0, 0, 0]);
    // As transformers writes it where there is none.
    expect(windows({ use_sliding_window: false, sliding_window: 0 })).toEqual([0, 0, 0, 0, 0, 0]);
  });

  test('dense layers among experts', () => {
    const c = resolve({
      ...small,
      model_type: 'qwen3_moe',
      mlp_only_layers: [1],
      decoder_sparse_step: 2,
      num_experts: 8,
    });
    expect(c.moeLayers).toEqual([false, false, false, true]);
    expect(tensorMapping(c).some((m) => m.hf === 'model.layers.0.mlp.gate_proj.weight')).toBe(true);
  });
});

describe('RoPE scaling', () => {
  const base = { ...small, model_type: 'llama', head_dim: 16, max_position_embeddings: 128 };
  // Reference values: transformers 5.17, modeling_rope_utils, in float32.
  test.each<[string, object, number[], number]>([
    [
      'llama3',
      {
        rope_type: 'llama3',
        rope_theta: 500000,
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 32,
      },
      [
        1.0, 0.024240345, 0.0047007538, 0.00091158313, 0.00017677668, 3.4281024e-5, 6.6478697e-6,
        1.2891732e-6,
      ],
      1,
    ],
    [
      'llama3, with a frequency between those that stay and those that are divided',
      {
        rope_type: 'llama3',
        rope_theta: 10000,
        factor: 8,
        low_freq_factor: 1,
        high_freq_factor: 4,
        original_max_position_embeddings: 512,
      },
      [1.0, 0.31622776, 0.1, 0.018496677, 0.00125, 0.00039528473, 0.00012500001, 3.9528473e-5],
      1,
    ],
    [
      'yarn',
      { rope_type: 'yarn', rope_theta: 10000, factor: 4, original_max_position_embeddings: 32 },
      [1.0, 0.19764236, 0.025, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025000001, 7.9056947e-5],
      1.138629436111989,
    ],
    [
      'yarn with mscale, betas and no truncation',
      {
        rope_type: 'yarn',
        rope_theta: 10000,
        factor: 40,
        original_max_position_embeddings: 4096,
        mscale: 1,
        mscale_all_dim: 0.7,
        beta_fast: 16,
        beta_slow: 2,
        truncate: false,
      },
      [1.0, 0.31622776, 0.1, 0.031622779, 0.0057901046, 0.00012395246, 2.4999999e-5, 7.9056945e-6],
      1.0879546075066122,
    ],
  ])('%s', (_name, rope_parameters, invFreq, factor) => {
    const c = resolve({ ...base, rope_parameters });
    for (const [i, f] of invFreq.entries()) expect(c.ropeInvFreq[i]! / f).toBeCloseTo(1, 5);
    expect(c.ropeInvFreq).toHaveLength(invFreq.length);
    expect(c.ropeAttentionFactor).toBeCloseTo(factor, 6);
  });

  test('truncate: null truncates nothing', () => {
    const yarn = (truncate?: boolean | null) =>
      resolve({
        ...base,
        rope_parameters: {
          rope_type: 'yarn',
          factor: 4,
          original_max_position_embeddings: 32,
          beta_fast: 4,
          truncate,
        },
      }).ropeInvFreq;
    expect(yarn(null)).toEqual(yarn(false));
    expect(yarn()).toEqual(yarn(true));
    expect(yarn()).not.toEqual(yarn(false));
  });

  test('attention_factor overrides, yarn reaches factor times the original length', () => {
    const c = resolve({
      ...base,
      rope_scaling: { type: 'yarn', factor: 4, original_max_position_embeddings: 64, attention_factor: 1.5 },
    });
    expect([c.ropeAttentionFactor, c.maxPositions]).toEqual([1.5, 256]);
  });
});

test('Phi-3 keeps its fused matrices whole', () => {
  const c = resolve(configOf('phi3'));
  const layer = tensorMapping(c).filter(({ hf }) => hf.startsWith('model.layers.1.') && hf.includes('proj'));
  expect(layer.map(({ hf, param, shape }) => [hf.slice(15), param.slice(9), shape])).toEqual([
    ['self_attn.qkv_proj.weight', 'attn.qkv.weight', [64, 32]],
    ['self_attn.o_proj.weight', 'attn.out.weight', [32, 32]],
    ['mlp.gate_up_proj.weight', 'mlp.in.weight', [56, 32]],
    ['mlp.down_proj.weight', 'mlp.out.weight', [32, 28]],
  ]);
  expect(c.ropeInvFreq).toHaveLength(2);
  expect(c.slidingWindows).toEqual([6, 6, 6]);
  expect(c.maxPositions).toBe(64);
});

test.each<[string, object, number]>([
  ['llama', {}, 32],
  ['mistral', {}, 32],
  ['qwen2', {}, 32],
  ['qwen3', {}, 32],
  ['mixtral', {}, 32],
  ['mimo', {}, 32],
  ['phi3', {}, 32],
  ['gemma3_text', {}, 26],
  ['smollm3', {}, 36],
  ['granite', {}, 32],
  ['granitemoe', {}, 32],
  ['glm4', {}, 40],
  ['olmo2', {}, 32],
  ['olmo3', {}, 32],
  ['seed_oss', {}, 64],
  ['gemma', {}, 28],
  ['gemma2', {}, 26],
  ['qwen2_moe', {}, 24],
  ['qwen3_moe', {}, 24],
  ['glm4_moe', { head_dim: 128 }, 46],
  ['dots1', { n_routed_experts: 8, num_experts_per_tok: 2, n_shared_experts: 1 }, 62],
  ['gpt2', {}, 12],
])(
  '%s has the layers of its Hugging Face class when config.json does not say',
  (model_type, more, layers) => {
    expect(resolve({ model_type, ...more }).numLayers).toBe(layers);
    expect(resolve({ model_type, ...more, num_hidden_layers: null, n_layer: null }).numLayers).toBe(layers);
  },
);

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
