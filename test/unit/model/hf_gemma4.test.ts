import { readFileSync } from 'node:fs';
import path from 'node:path';
import { isUnusedKey } from '../../../ts/model/gemma4_names';
import { atLayer, headsAt, sharesKeys } from '../../../ts/model/layer_shapes';
import { architectureName, fileTensors, tensorMapping } from '../../../ts/model/tensor_names';
import { tensorProblem } from '../../../ts/model/tensor_parts';
import { CONFORMANCE } from '../../helpers/conformance';
import { resolve } from './small_config';

const configOf = (name: string): Record<string, unknown> =>
  JSON.parse(readFileSync(path.join(CONFORMANCE, 'models', name, 'actor', 'config.json'), 'utf8'));

test('heads of two shapes, values that are keys, and a scale of every layer', () => {
  const c = resolve(configOf('gemma4_text'));
  expect(c).toMatchObject({
    numHeads: 4,
    numKvHeads: 1,
    headDim: 12,
    secondHeads: { numKvHeads: 2, headDim: 8 },
    secondRopeLayers: [true, false, true, false],
    slidingWindows: [6, 0, 6, 0],
    valuesFromKeys: true,
    valueNorm: true,
    layerScale: true,
    attentionScale: 1,
    embeddingScale: Math.sqrt(24),
    finalSoftcap: 8,
    tiedEmbeddings: true,
    moe: null,
    sharedKvLayers: 0,
    perLayerSize: 0,
  });
  // A quarter of the pairs of a head of 12 turns, rounded down, by the frequencies of a whole one.
  expect(Array.from(c.ropeInvFreq)).toEqual([1, 0, 0, 0, 0, 0]);
  expect(c.secondRopeInvFreq[1]).toBeCloseTo(10_000 ** (-2 / 8), 15);
  expect([0, 1].map((layer) => headsAt(c, layer))).toEqual([
    { numKvHeads: 2, headDim: 8 },
    { numKvHeads: 1, headDim: 12 },
  ]);
  expect([0, 1].map((layer) => atLayer(c, layer).valuesFromKeys)).toEqual([false, true]);
  expect(architectureName(c)).toBe('Gemma4ForCausalLM');
  const shapes = new Map(tensorMapping(c).map(({ hf, shape }) => [hf, shape]));
  expect(shapes.get('model.layers.0.self_attn.v_proj.weight')).toEqual([16, 24]);
  expect(shapes.get('model.layers.1.self_attn.k_proj.weight')).toEqual([12, 24]);
  expect(shapes.has('model.layers.1.self_attn.v_proj.weight')).toBe(false);
  expect(shapes.get('model.layers.1.layer_scalar')).toEqual([1]);
});

test('experts beside an MLP, all of them in one tensor', () => {
  const c = resolve(configOf('gemma4_moe'));
  expect(c.moe).toMatchObject({
    besideMlp: true,
    numExperts: 6,
    topK: 2,
    normalizeTopK: true,
    score: 'softmax',
  });
  expect(c.moeLayers).toEqual([true, true, true]);
  expect(Array.from(c.ropeInvFreq).filter((f) => f > 0)).toHaveLength(3);
  const tensors = new Map(
    fileTensors(tensorMapping(c)).map(([first, ...rest]) => [first.hf, [first.shape, rest.length + 1]]),
  );
  expect(tensors.get('model.layers.2.experts.gate_up_proj')).toEqual([[6, 20, 24], 6]);
  expect(tensors.get('model.layers.2.router.per_expert_scale')).toEqual([[6], 1]);
  expect(tensors.has('model.layers.2.mlp.down_proj.weight')).toBe(true);
});

test('the last layers take keys from others, and all get numbers of tokens', () => {
  const c = resolve(configOf('gemma4_shared'));
  expect(c).toMatchObject({ sharedKvLayers: 3, sharedMlpSize: 56, perLayerSize: 6, valuesFromKeys: false });
  expect(Array.from({ length: 7 }, (_, layer) => sharesKeys(c, layer))).toEqual([
    ...[false, false, false, true, true, true],
    false,
  ]);
  const shapes = new Map(tensorMapping(c).map(({ hf, shape }) => [hf, shape]));
  expect(shapes.get('model.embed_tokens_per_layer.weight')).toEqual([128, 36]);
  expect(shapes.get('model.layers.2.mlp.up_proj.weight')).toEqual([28, 24]);
  expect(shapes.get('model.layers.3.mlp.up_proj.weight')).toEqual([56, 24]);
  expect(shapes.get('model.layers.3.per_layer_input_gate.weight')).toEqual([6, 24]);
  expect(shapes.has('model.layers.3.self_attn.k_proj.weight')).toBe(false);
  // Which published files have all the same.
  expect(isUnusedKey(c, 'model.layers.3.self_attn.k_norm.weight')).toBe(true);
  expect(isUnusedKey(c, 'model.layers.3.self_attn.v_proj.weight')).toBe(true);
  expect(isUnusedKey(c, 'model.layers.2.self_attn.k_norm.weight')).toBe(false);
  expect(isUnusedKey(c, 'model.layers.3.self_attn.q_proj.weight')).toBe(false);
});

const GEMMA4_31B = {
  model_type: 'gemma4_text',
  hidden_size: 5376,
  num_hidden_layers: 60,
  num_attention_heads: 32,
  num_key_value_heads: 16,
  num_global_key_value_heads: 4,
  attention_k_eq_v: true,
  intermediate_size: 21504,
  sliding_window: 1024,
  hidden_size_per_layer_input: 0,
  final_logit_softcapping: 30.0,
};
const GEMMA4_26B = {
  ...GEMMA4_31B,
  hidden_size: 2816,
  num_hidden_layers: 30,
  num_attention_heads: 16,
  num_key_value_heads: 8,
  num_global_key_value_heads: 2,
  intermediate_size: 2112,
  enable_moe_block: true,
  num_experts: 128,
  top_k_experts: 8,
  moe_intermediate_size: 704,
};

test.each([
  ['31B', GEMMA4_31B, 30.7],
  ['26B-A4B', GEMMA4_26B, 25.2],
])('the language model of %s has the parameters that it is published with', (_name, config, billions) => {
  const count = fileTensors(tensorMapping(resolve(config))).reduce(
    (sum, [{ shape }]) => sum + shape.reduce((size, extent) => size * extent, 1),
    0,
  );
  expect(Math.round(count / 1e8) / 10).toBe(billions);
});

test('ranks share heads of both shapes', () => {
  const c = resolve(GEMMA4_26B);
  expect(tensorProblem(8, c)).toBeNull();
  expect(tensorProblem(8, { ...c, secondHeads: { numKvHeads: 3, headDim: 8 } })).toBe(
    'expected a divisor or a multiple of the 3 key heads',
  );
});

test('per_layer_config says the same as the keys of published files', () => {
  const { num_global_key_value_heads: _, ...others } = GEMMA4_31B;
  const full = Array.from({ length: 10 }, (_, i) => String(6 * i + 5).padStart(2, '0'));
  const saved = Object.fromEntries(full.map((layer) => [layer, { head_dim: 512, num_key_value_heads: 4 }]));
  expect(resolve({ ...others, per_layer_config: saved })).toEqual(resolve(GEMMA4_31B));
});

test.each<[object, RegExp]>([
  [{ use_bidirectional_attention: 'all' }, /use_bidirectional_attention "all" is not supported/],
  [
    { per_layer_config: { 5: { head_dim: 64 } } },
    /per_layer_config\.5: layers of one type have heads of one shape/,
  ],
  [{ per_layer_config: { 60: { head_dim: 512 } } }, /per_layer_config/],
  [{ per_layer_config: { 0: { sliding_window: 5 } } }, /per_layer_config/],
  [{ num_kv_shared_layers: 60 }, /num_kv_shared_layers 60: no layer of sliding_attention/],
  [{ layer_types: ['full_attention'] }, /layer_types has 1 entries but the model has 60 layers/],
  [
    { hidden_size_per_layer_input: 8, vocab_size_per_layer_input: 9 },
    /vocab_size_per_layer_input 9: expected vocab_size, 262144/,
  ],
  [{ enable_moe_block: true, num_experts: 4, top_k_experts: 2 }, /moe_intermediate_size is missing/],
  [{ num_key_value_heads: 5 }, /num_attention_heads 32 does not divide by num_key_value_heads 5/],
  [{ head_dim: 7 }, /head_dim 7 is odd/],
  [
    { rope_parameters: { full_attention: { rope_type: 'proportional', partial_rotary_factor: 2 } } },
    /partial_rotary_factor 2: expected a share of at most 1/,
  ],
  [
    { rope_parameters: { full_attention: { rope_type: 'yarn' } } },
    /rope_type "yarn" is not supported; supported: default, proportional/,
  ],
])('%j is refused', (keys, message) => {
  expect(() => resolve({ ...GEMMA4_31B, ...keys })).toThrow(message);
});
