import { resolveModelConfig } from '../../../ts/model/hf_config';
import { tensorMapping } from '../../../ts/model/tensor_names';
import { resolve, small } from './small_config';

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

  test.each([
    'mistral',
    'ministral3',
    'qwen2',
    'phi3',
    'gemma2',
    'gemma3_text',
    'mixtral',
    'gpt_oss',
    'olmo3',
    'cwm',
    'exaone4',
    'exaone_moe',
    'afmoe',
  ])('a window of %s is a whole number of positions', (model_type) => {
    for (const sliding_window of [2.5, -1, 2 ** 31])
      expect(() => resolve({ ...small, model_type, sliding_window })).toThrow(/sliding_window/);
  });

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

test.each<[string, object, number]>([
  ['llama', {}, 32],
  ['mistral', {}, 32],
  ['ministral3', {}, 34],
  ['qwen2', {}, 32],
  ['qwen3', {}, 32],
  ['mixtral', {}, 32],
  ['mimo', {}, 32],
  ['phi3', {}, 32],
  ['gemma3_text', {}, 26],
  ['gemma4_text', {}, 30],
  ['smollm3', {}, 36],
  ['granite', {}, 32],
  ['granitemoe', {}, 32],
  ['granitemoehybrid', {}, 32],
  ['granitemoeshared', {}, 32],
  ['arcee', {}, 32],
  ['solar_open', {}, 48],
  ['glm4', {}, 40],
  ['ernie4_5', {}, 18],
  ['ernie4_5_moe', {}, 28],
  ['glm', {}, 40],
  ['exaone', {}, 32],
  ['apertus', {}, 32],
  ['exaone4', {}, 32],
  ['exaone_moe', {}, 32],
  ['afmoe', {}, 32],
  ['cwm', {}, 64],
  ['olmoe', {}, 16],
  ['minimax_m2', {}, 62],
  ['hy_v3', {}, 80],
  ['nemotron_h', {}, 2],
  ['olmo2', {}, 32],
  ['olmo3', {}, 32],
  ['olmo_hybrid', {}, 32],
  ['youtu', {}, 32],
  ['mellum', {}, 28],
  ['lfm2', {}, 32],
  ['lfm2_moe', { layer_types: new Array(32).fill('conv') }, 32],
  ['seed_oss', {}, 64],
  ['gemma', {}, 28],
  ['gemma2', {}, 26],
  ['qwen2_moe', {}, 24],
  ['qwen3_moe', {}, 24],
  ['glm4_moe', { head_dim: 128 }, 46],
  ['dots1', { n_routed_experts: 8, num_experts_per_tok: 2, n_shared_experts: 1 }, 62],
  ['deepseek_v2', { num_experts_per_tok: 6 }, 32],
  ['glm4_moe_lite', {}, 47],
  ['gpt2', {}, 12],
])(
  '%s has the layers of its Hugging Face class when config.json does not say',
  (model_type, more, layers) => {
    expect(resolve({ model_type, ...more }).numLayers).toBe(layers);
    expect(resolve({ model_type, ...more, num_hidden_layers: null, n_layer: null }).numLayers).toBe(layers);
  },
);
