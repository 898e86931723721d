import { readFileSync } from 'node:fs';
import path from 'node:path';
import { trainingFlops } from '../../../ts/engine/flops';
import { adapterTargets } from '../../../ts/model/adapter_sites';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { isPredictionLayer } from '../../../ts/model/prediction_layers';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { tinyModel } from '../../helpers/tiny_model';

// The families with latent attention.

const models = path.join(__dirname, '../../fixtures/conformance/models');
const configOf = (name: string): Record<string, unknown> =>
  JSON.parse(readFileSync(path.join(models, name, 'actor', 'config.json'), 'utf8'));
const resolve = (raw: object): NativeModelConfig => resolveModelConfig(raw, 'lm', 'config.json').native;
const deepseek = configOf('deepseek_v3');

test('the conformance models', () => {
  const c = resolve(deepseek);
  expect(c).toMatchObject({ numHeads: 4, numKvHeads: 4, headDim: 10, qkvBias: true, outputBias: true });
  expect(c.latent).toEqual({
    queryRank: 12,
    keyRank: 10,
    stillDim: 6,
    rotaryDim: 4,
    valueDim: 8,
    interleaved: true,
    normEps: 1e-6, // whatever rms_norm_eps is
  });
  expect(c.normEps).toBe(1e-5);
  expect(c.ropeInvFreq).toHaveLength(2);
  expect(c.moeLayers).toEqual([false, true, true]);
  const moonlight = resolve(configOf('moonlight'));
  expect(moonlight.latent).toMatchObject({ queryRank: 0, stillDim: 8, valueDim: 8 });
  expect(moonlight).toMatchObject({ headDim: 12, qkvBias: false, attentionScale: 12 ** -0.5 });
});

test('defaults of the Hugging Face class: those of DeepSeek-V3', () => {
  const c = resolve({ model_type: 'deepseek_v3' });
  expect(c).toMatchObject({ numLayers: 61, numHeads: 128, numKvHeads: 128, headDim: 192, hiddenSize: 7168 });
  expect(c.latent).toMatchObject({
    queryRank: 1536,
    keyRank: 512,
    stillDim: 128,
    rotaryDim: 64,
    valueDim: 128,
  });
  expect(c.moe).toMatchObject({ numExperts: 256, topK: 8, groups: 8, topGroups: 4, routedScale: 2.5 });
  expect(c.moeLayers.indexOf(true)).toBe(3);
  expect(resolve({ model_type: 'deepseek_v3', q_lora_rank: null }).latent?.queryRank).toBe(0);
  expect(resolve({ model_type: 'deepseek_v3', rope_interleave: null }).latent?.interleaved).toBe(false);
});

test('yarn: mscale_all_dim is in the scale of attention, twice, and divides what cos and sin are multiplied by', () => {
  const scaled = (changes: object): NativeModelConfig =>
    resolve({
      model_type: 'deepseek_v3',
      rope_scaling: { type: 'yarn', factor: 40, original_max_position_embeddings: 4096, ...changes },
    });
  const m = 0.1 * Math.log(40) + 1;
  const both = scaled({ mscale: 1, mscale_all_dim: 1 });
  expect(both.attentionScale).toBeCloseTo(192 ** -0.5 * m * m, 15);
  expect(both.ropeAttentionFactor).toBe(1);
  const none = scaled({});
  expect(none.attentionScale).toBe(192 ** -0.5);
  expect(none.ropeAttentionFactor).toBeCloseTo(m, 15);
  expect(both.ropeInvFreq).toHaveLength(32);
  expect(both.maxPositions).toBe(163840);
});

test('Kimi K2 is the same computation under another name', () => {
  const kimi = resolve({ ...deepseek, model_type: 'kimi_k2' });
  expect({ ...kimi, family: 'deepseek_v3' }).toEqual(resolve(deepseek));
  expect(architectureName(kimi)).toBe('DeepseekV3ForCausalLM');
});

test('DeepSeek-V2: softmax scores, groups that rank by their best expert', () => {
  const v2 = configOf('deepseek_v2');
  const c = resolve(v2);
  expect(c.latent).toMatchObject({
    queryRank: 12,
    keyRank: 10,
    valueDim: 8,
    interleaved: true,
    normEps: 1e-6,
  });
  expect(c.moe).toEqual({
    numExperts: 8,
    topK: 3,
    intermediateSize: 10,
    normalizeTopK: false,
    sharedIntermediateSize: 20,
    sharedGate: false,
    score: 'softmax',
    wideLogits: true,
    latentSize: 0,
    correctionBias: false,
    groups: 4,
    topGroups: 2,
    groupBest: 1,
    routedScale: 2.5,
    normalizerEps: 0,
    besideMlp: false,
    biases: false,
  });
  expect(c.moeLayers).toEqual([false, true, true]);
  expect(architectureName(c)).toBe('DeepseekV2ForCausalLM');
  const names = tensorMapping(c).map((m) => m.hf);
  expect(names).toContain('model.layers.1.mlp.shared_experts.down_proj.weight');
  expect(names.some((name) => name.includes('correction_bias'))).toBe(false);
  // A group may be one expert; the groups of greedy choices are none.
  expect(resolve({ ...v2, n_group: 8, topk_group: 3 }).moe).toMatchObject({ groups: 8, topGroups: 3 });
  expect(resolve({ ...v2, topk_method: 'greedy' }).moe).toMatchObject({ groups: 1, topGroups: 1 });
  expect(resolve({ ...v2, rope_interleave: false })).toEqual(c);
  // The scale of attention has the factor twice, as in DeepSeek-V3.
  const m = 0.1 * Math.log(8) + 1;
  expect(c.attentionScale).toBeCloseTo(10 ** -0.5 * m * m, 15);
  expect(c.ropeAttentionFactor).toBeCloseTo((0.07 * Math.log(8) + 1) / m, 15);
  const lite = resolve(configOf('deepseek_v2_lite'));
  expect(lite.latent?.queryRank).toBe(0);
  expect(lite.moe).toMatchObject({ groups: 1, topGroups: 1, routedScale: 1 });
  expect(lite.ropeAttentionFactor).toBe(1);
});

test.each<[object, RegExp]>([
  [
    { topk_method: 'noaux_tc' },
    /topk_method "noaux_tc" is not supported; supported: "greedy", "group_limited_greedy"/,
  ],
  [{ scoring_func: 'sigmoid' }, /scoring_func "sigmoid" is not supported; supported: "softmax"/],
  [{ moe_layer_freq: 2 }, /moe_layer_freq 2 is not supported; supported: 1/],
  [
    { norm_topk_prob: true },
    /norm_topk_prob true is not supported \(.*leaves out routed_scaling_factor\); supported: false/,
  ],
  [
    { mlp_bias: true },
    /mlp_bias true is not supported \(DeepSeek's own code has no such biases\); supported: false/,
  ],
  [{ n_group: null }, /n_group is missing, topk_method group_limited_greedy needs it/],
  [{ topk_group: null }, /topk_group is missing, topk_method group_limited_greedy needs it/],
  [{ n_group: 3 }, /n_group 3: expected a divisor of the 8 experts that leaves 1 or more in a group/],
  [{ topk_group: 1 }, /topk_group 1: .*groups of 2 experts that have the 3 of num_experts_per_tok/],
  [{ num_experts_per_tok: undefined }, /num_experts_per_tok/],
  [{ num_key_value_heads: 2 }, /num_key_value_heads 2: .*a key for each of the 4 heads/],
])('no model of DeepSeek-V2 is like that: %j', (changes, message) => {
  expect(() => resolve({ ...configOf('deepseek_v2'), ...changes })).toThrow(message);
});

test('GLM-4.7-Flash: both parts of DeepSeek-V3, and layers with experts by their types', () => {
  const flash = configOf('glm4_moe_lite');
  const c = resolve(flash);
  expect(c).toMatchObject({ headDim: 10, qkvBias: false, attentionScale: 10 ** -0.5 });
  expect(c.latent).toMatchObject({
    queryRank: 12,
    keyRank: 10,
    valueDim: 10,
    interleaved: true,
    normEps: 1e-6,
  });
  expect(c.moe).toMatchObject({
    numExperts: 8,
    topK: 3,
    groups: 1,
    sharedIntermediateSize: 10,
    routedScale: 1.8,
  });
  expect(c.moeLayers).toEqual([false, true, true]);
  const { first_k_dense_replace: _, ...typed } = flash;
  const types = (...mlp_layer_types: string[]): boolean[] => resolve({ ...typed, mlp_layer_types }).moeLayers;
  expect(types('sparse', 'dense', 'sparse')).toEqual([true, false, true]);
  expect(types('dense', 'dense', 'dense')).toEqual([]);
  expect(resolve({ ...flash, mlp_layer_types: ['dense', 'sparse', 'sparse'] })).toEqual(c);
  expect(architectureName(c)).toBe('Glm4MoeLiteForCausalLM');
  expect(isPredictionLayer(c, 'model.layers.3.eh_proj.weight')).toBe(true);
  const published = resolve({ model_type: 'glm4_moe_lite' });
  expect(published).toMatchObject({ headDim: 256, numHeads: 20, maxPositions: 202752, normEps: 1e-5 });
  expect(published.moeLayers.indexOf(true)).toBe(1);
});

test.each<[object, RegExp]>([
  [
    { first_k_dense_replace: 2 },
    /first_k_dense_replace 2 and mlp_layer_types \(missing: .*: expected the same/,
  ],
  [
    { mlp_layer_types: ['sparse', 'sparse', 'sparse'] },
    /first_k_dense_replace 1 and mlp_layer_types \["sparse","sparse","sparse"\]: expected the same layers/,
  ],
  [{ mlp_layer_types: ['dense'] }, /mlp_layer_types has 1 entries but the model has 3 layers/],
  [{ mlp_layer_types: ['dense', 'moe', 'sparse'] }, /mlp_layer_types\[1\] "moe" is not supported/],
  [{ partial_rotary_factor: 0.5 }, /partial_rotary_factor 0.5 is not supported/],
  [{ topk_method: 'greedy' }, /topk_method "greedy" is not supported; supported: "noaux_tc"/],
])('no model of GLM-4.7 is like that: %j', (changes, message) => {
  expect(() => resolve({ ...configOf('glm4_moe_lite'), ...changes })).toThrow(message);
});

test.each<[object, RegExp]>([
  [{ num_key_value_heads: 2 }, /num_key_value_heads 2: .*a key for each of the 4 heads/],
  [{ qk_rope_head_dim: 3 }, /qk_rope_head_dim 3 is odd/],
  [{ scoring_func: 'softmax' }, /scoring_func "softmax" is not supported; supported: "sigmoid"/],
  [{ topk_method: 'greedy' }, /topk_method "greedy" is not supported; supported: "noaux_tc"/],
  [{ moe_layer_freq: 2 }, /moe_layer_freq 2 is not supported; supported: 1/],
  [
    { rope_parameters: { rope_type: 'llama3', factor: 8 } },
    /rope_type "llama3" is not supported; supported: default, yarn/,
  ],
  [{ topk_group: 5 }, /topk_group 5: expected at most n_group 4/],
])('no model is like that: %j', (changes, message) => {
  expect(() => resolve({ ...deepseek, ...changes })).toThrow(message);
});

describe('names', () => {
  const config = resolve(deepseek);
  const mapping = tensorMapping(config);
  const attention = (layer: number): [string, number[]][] =>
    mapping
      .filter((m) => m.hf.startsWith(`model.layers.${layer}.self_attn.`))
      .map((m) => [m.hf.replace(/^.*self_attn\./, ''), m.shape]);

  test('those of Hugging Face', () => {
    expect(attention(1)).toEqual([
      ['q_a_proj.weight', [12, 24]],
      ['q_a_proj.bias', [12]],
      ['q_a_layernorm.weight', [12]],
      ['q_b_proj.weight', [40, 12]],
      ['kv_a_proj_with_mqa.weight', [14, 24]],
      ['kv_a_proj_with_mqa.bias', [14]],
      ['kv_a_layernorm.weight', [10]],
      ['kv_b_proj.weight', [56, 10]],
      ['o_proj.weight', [24, 32]],
      ['o_proj.bias', [24]],
    ]);
    const direct = tensorMapping(resolve(configOf('moonlight'))).map((m) => m.hf);
    expect(direct).toContain('model.layers.0.self_attn.q_proj.weight');
    expect(direct.some((name) => /q_[ab]_/.test(name))).toBe(false);
  });

  test('adapters on all five matrices of attention', () => {
    const targets = adapterTargets(config, mapping).filter((t) =>
      t.module.startsWith('model.layers.0.self_attn.'),
    );
    expect(targets.map((t) => t.module.replace(/^.*\./, ''))).toEqual([
      'q_a_proj',
      'q_b_proj',
      'kv_a_proj_with_mqa',
      'kv_b_proj',
      'o_proj',
    ]);
  });

  test('layers that predict further tokens are left out', () => {
    expect(isPredictionLayer(config, 'model.layers.3.eh_proj.weight')).toBe(true);
    expect(isPredictionLayer(config, 'model.layers.2.self_attn.q_b_proj.weight')).toBe(false);
  });
});

test('operations: the matrices of the projection, and scores of keys and values of their own sizes', () => {
  const latent = {
    queryRank: 3,
    keyRank: 5,
    stillDim: 4,
    rotaryDim: 2,
    valueDim: 7,
    interleaved: true,
    normEps: 1e-6,
  };
  const model = tinyModel({ numKvHeads: 2, headDim: 7, latent });
  const rest = 3 * 8 * 16 + 2 * 16 * 8;
  // As verl's flops_counter has it for deepseek_v3.
  const attention = 8 * 3 + 3 * 2 * 6 + 8 * (5 + 2) + 5 * 2 * (4 + 7) + 2 * 7 * 8;
  expect(trainingFlops(model, [2, 3])).toBe(6 * (rest + attention) * 5 + 3 * (4 + 9) * (6 + 7) * 2);
  const direct = tinyModel({ numKvHeads: 2, headDim: 7, latent: { ...latent, queryRank: 0 } });
  expect(trainingFlops(model, [1]) - trainingFlops(direct, [1])).toBe(6 * (8 * 3 + 3 * 2 * 6 - 8 * 2 * 6));
});

test('Youtu-LLM: the attention of DeepSeek-V3 in a dense decoder', () => {
  const c = resolve({ model_type: 'youtu' });
  expect(c).toMatchObject({ numLayers: 32, hiddenSize: 2048, intermediateSize: 6144, tiedEmbeddings: true });
  expect(c).toMatchObject({ moe: null, moeLayers: [], numHeads: 16, numKvHeads: 16, headDim: 192 });
  expect(c.latent).toEqual(resolve({ model_type: 'deepseek_v3' }).latent);
  const layer = tensorMapping(c).filter(({ hf }) => hf.startsWith('model.layers.31.'));
  expect(layer.map(({ hf }) => hf.split('.').slice(3, -1).join('.'))).toEqual([
    'input_layernorm',
    ...[
      'q_a_proj',
      'q_a_layernorm',
      'q_b_proj',
      'kv_a_proj_with_mqa',
      'kv_a_layernorm',
      'kv_b_proj',
      'o_proj',
    ].map((name) => `self_attn.${name}`),
    'post_attention_layernorm',
    ...['gate_proj', 'up_proj', 'down_proj'].map((name) => `mlp.${name}`),
  ]);
});
