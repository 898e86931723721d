import { isPredictionLayer } from '../../../ts/model/prediction_layers';
import { tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { resolve, small } from './small_config';

// Experts that are chosen by scores with a correction, and weighted by the scores without.

/** Of layer `i`: what files call them, and their shapes, with one expert. */
const tensors = (config: NativeModelConfig, i: number): [string, number[]][] =>
  tensorMapping(config)
    .filter(({ hf }) => hf.startsWith(`model.layers.${i}.`) && !/norm|self_attn|experts\.[1-9]/.test(hf))
    .map(({ hf, shape }) => [hf.slice(15), shape]);

test('ERNIE 4.5: a softmax, shared experts, and the layers that have experts', () => {
  const raw = {
    ...small,
    model_type: 'ernie4_5_moe',
    moe_num_experts: 8,
    moe_k: 3,
    moe_intermediate_size: 10,
  };
  const c = resolve(raw);
  expect(c).toMatchObject({ ropePairs: true, headDim: 16, tiedEmbeddings: true });
  expect(c.ropeInvFreq[1]).toBeCloseTo(500000 ** (-1 / 8), 15);
  expect(c.moe).toEqual({
    numExperts: 8,
    topK: 3,
    intermediateSize: 10,
    sharedIntermediateSize: 20,
    sharedGate: false,
    score: 'softmax',
    correctionBias: true,
    normalizeTopK: true,
    wideLogits: true,
    latentSize: 0,
    groups: 1,
    topGroups: 1,
    groupBest: 1,
    routedScale: 1,
    normalizerEps: 0,
    besideMlp: false,
    biases: false,
  });
  expect(tensors(c, 1)).toEqual([
    ['mlp.gate.weight', [8, 64]],
    ['mlp.moe_statics.e_score_correction_bias', [1, 8]],
    ['mlp.shared_experts.gate_proj.weight', [20, 64]],
    ['mlp.shared_experts.up_proj.weight', [20, 64]],
    ['mlp.shared_experts.down_proj.weight', [64, 20]],
    ['mlp.experts.0.gate_proj.weight', [10, 64]],
    ['mlp.experts.0.up_proj.weight', [10, 64]],
    ['mlp.experts.0.down_proj.weight', [64, 10]],
  ]);
  const layers = (keys: object): boolean[] => resolve({ ...raw, ...keys }).moeLayers;
  expect(c.moeLayers).toEqual([false, true, true, true]);
  expect(layers({ moe_layer_start_index: 0, moe_layer_interval: 2 })).toEqual([false, true, false, true]);
  expect(layers({ moe_layer_end_index: 2 })).toEqual([false, true, true, false]);
  expect(resolve({ ...raw, moe_layer_end_index: 0 }).moe).toBeNull();
  expect(resolve({ ...raw, moe_num_shared_experts: 0 }).moe?.sharedIntermediateSize).toBe(0);
  expect(isPredictionLayer(c, 'model.mtp_block.0.mlp.gate_proj.weight')).toBe(true);
  expect(isPredictionLayer(c, 'model.layers.3.mlp.gate.weight')).toBe(false);
});

test('MiniMax-M2: sigmoids, norms over all heads, and so many numbers of a head that turn', () => {
  const raw = {
    ...small,
    model_type: 'minimax_m2',
    head_dim: 16,
    num_local_experts: 4,
    num_experts_per_tok: 2,
  };
  const c = resolve({ ...raw, rotary_dim: 8 });
  expect(c).toMatchObject({ wholeQkNorm: true, qkNorm: false, moeLayers: [true, true, true, true] });
  expect(c.moe).toMatchObject({
    score: 'sigmoid',
    correctionBias: true,
    sharedIntermediateSize: 0,
    routedScale: 1,
  });
  expect(c.ropeInvFreq).toHaveLength(4);
  expect(c.ropeInvFreq[1]).toBeCloseTo(5e6 ** (-1 / 4), 15);
  expect(resolve(raw).ropeInvFreq).toHaveLength(8);
  expect(resolve({ ...raw, rotary_dim: 8, partial_rotary_factor: 0.25 }).ropeInvFreq).toHaveLength(2);
  const theirs = { rope_theta: 100, rope_type: 'default', partial_rotary_factor: 0.75 };
  expect(resolve({ ...raw, rotary_dim: 8, rope_parameters: theirs }).ropeInvFreq).toHaveLength(6);
  expect(tensors(c, 0).map(([name]) => name)).toEqual([
    'block_sparse_moe.gate.weight',
    'block_sparse_moe.e_score_correction_bias',
    'block_sparse_moe.experts.0.w1.weight',
    'block_sparse_moe.experts.0.w3.weight',
    'block_sparse_moe.experts.0.w2.weight',
  ]);
});

test('Hy3: sigmoids that are scaled, a shared expert, norms of each head', () => {
  const raw = {
    ...small,
    model_type: 'hy_v3',
    num_experts: 4,
    num_experts_per_tok: 2,
    num_shared_experts: 2,
  };
  const c = resolve(raw);
  expect(c).toMatchObject({ qkNorm: true, headDim: 128, moeLayers: [false, true, true, true] });
  expect(c.moe).toMatchObject({
    score: 'sigmoid',
    wideLogits: true,
    latentSize: 0,
    correctionBias: true,
    normalizeTopK: true,
    sharedIntermediateSize: 3072,
    routedScale: 2.826,
  });
  expect(c.ropeInvFreq[1]).toBeCloseTo(11_158_840 ** (-1 / 64), 15);
  expect(tensors(c, 1).map(([name]) => name)).toEqual([
    'mlp.router.gate.weight',
    'mlp.expert_bias',
    'mlp.shared_mlp.gate_proj.weight',
    'mlp.shared_mlp.up_proj.weight',
    'mlp.shared_mlp.down_proj.weight',
    'mlp.experts.0.gate_proj.weight',
    'mlp.experts.0.up_proj.weight',
    'mlp.experts.0.down_proj.weight',
  ]);
  const types = (...mlp_layer_types: string[]): boolean[] => resolve({ ...raw, mlp_layer_types }).moeLayers;
  expect(types('sparse', 'dense', 'dense', 'sparse')).toEqual([true, false, false, true]);
  expect(() => types('dense')).toThrow(/mlp_layer_types has 1 entries but the model has 4 layers/);
  expect(() => types('dense', 'moe', 'dense', 'dense')).toThrow(
    /mlp_layer_types\[1\] "moe" is not supported/,
  );
  expect(isPredictionLayer(c, 'model.layers.4.eh_proj.weight')).toBe(true);
  expect(isPredictionLayer(c, 'model.layers.3.mlp.expert_bias')).toBe(false);
});

test.each<[string, object, RegExp]>([
  ['hy_v3', { mlp_bias: true }, /mlp_bias/],
  ['ernie4_5_moe', { use_bias: true }, /use_bias/],
  ['ernie4_5_moe', { moe_norm_min: 0.1 }, /moe_norm_min/],
  ['ernie4_5_moe', { moe_layer_end_index: -2 }, /moe_layer_end_index/],
  [
    'ernie4_5_moe',
    { num_experts: 8, moe_num_experts: 4 },
    /num_experts 8 and moe_num_experts 4: expected the same/,
  ],
  [
    'minimax_m2',
    { num_local_experts: 4, num_experts_per_tok: 5 },
    /num_experts_per_tok 5 exceeds the 4 experts/,
  ],
])('%s with %j', (model_type, change, message) => {
  expect(() => resolve({ ...small, model_type, ...change })).toThrow(message);
});
