import { readFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { CONFORMANCE } from '../../helpers/conformance';

const resolve = (raw: object): NativeModelConfig => resolveModelConfig(raw, 'lm', 'config.json').native;
const small = { hidden_size: 32, num_attention_heads: 4, num_key_value_heads: 2, num_hidden_layers: 5 };
const yarn = {
  rope_type: 'yarn',
  factor: 8,
  original_max_position_embeddings: 64,
  beta_fast: 32,
  beta_slow: 1,
};

test('OLMo 2: norms behind attention and MLP alone, and over all heads of q and of k', () => {
  const c = resolve({ ...small, model_type: 'olmo2' });
  expect(c).toMatchObject({
    inputNorms: false,
    postNorms: true,
    qkNorm: false,
    wholeQkNorm: true,
    normEps: 1e-5,
    normUnitOffset: false,
    qkvBias: false,
    outputBias: false,
    slidingWindows: [0, 0, 0, 0, 0],
    secondRopeLayers: [],
    tiedEmbeddings: false,
  });
  expect(c.ropeInvFreq[1]).toBeCloseTo(10_000 ** (-2 / 8), 15);
  expect(resolve({ ...small, model_type: 'olmo2', attention_bias: true })).toMatchObject({
    qkvBias: true,
    outputBias: true,
    mlpBias: false,
  });
});

test('OLMo 3: windows on three of four layers, which a scaling leaves alone', () => {
  const hub = { ...small, model_type: 'olmo3', sliding_window: 6, rope_theta: 500000, rope_scaling: yarn };
  const c = resolve({ ...hub, max_position_embeddings: 512 });
  expect(c.slidingWindows).toEqual([6, 6, 6, 0, 6]);
  expect(c.secondRopeLayers).toEqual([true, true, true, false, true]);
  expect(c.ropeAttentionFactor).toBeCloseTo(0.1 * Math.log(8) + 1, 15);
  expect(c.secondRopeAttentionFactor).toBe(1);
  expect(Array.from(c.secondRopeInvFreq)).toEqual(
    Array.from(resolve({ ...small, model_type: 'olmo2', rope_theta: 500_000 }).ropeInvFreq),
  );
  expect(c.ropeInvFreq[3]).toBeCloseTo((c.secondRopeInvFreq[3] as number) / 8, 15);
  const five = {
    ...small,
    model_type: 'olmo3',
    max_position_embeddings: 512,
    sliding_window: 6,
    layer_types: c.slidingWindows.map((window) => (window > 0 ? 'sliding_attention' : 'full_attention')),
    rope_parameters: {
      full_attention: { ...yarn, rope_theta: 500000 },
      sliding_attention: { rope_type: 'default', rope_theta: 500000 },
    },
  };
  expect(resolve(five)).toEqual(c);
  const each = {
    ...five,
    rope_theta: 77, // of neither
    rope_parameters: {
      full_attention: { rope_type: 'default', rope_theta: 100 },
      sliding_attention: { rope_type: 'default', rope_theta: 16 },
    },
  };
  expect([resolve(each).ropeInvFreq[2], resolve(each).secondRopeInvFreq[2]]).toEqual([1 / 10, 1 / 4]);
});

test('OLMo 3 when config.json does not say', () => {
  const c = resolve({ model_type: 'olmo3' });
  expect(c).toMatchObject({ numLayers: 32, numKvHeads: 32, vocabSize: 50304, maxPositions: 2048 });
  expect(c.slidingWindows.slice(0, 5)).toEqual([4096, 4096, 4096, 0, 4096]);
});

test.each<[object, RegExp]>([
  [{ rope_theta: 10000 }, /rope_theta 10000: transformers 5 turns layers with a window by 500000 then/],
  [
    { rope_scaling: { type: 'yarn', factor: 8 } },
    /rope_scaling.type "yarn": transformers 5 reads rope_scaling.rope_type alone/,
  ],
  [
    { rope_parameters: { rope_type: 'default' } },
    /rope_parameters: expected those of full_attention and of sliding/,
  ],
  [{ sliding_window: null }, /layer_types\[0\] is sliding_attention but no sliding_window/],
  [{ layer_types: ['full_attention'] }, /layer_types has 1 entries but the model has 5 layers/],
])('OLMo 3 with %j', (change, message) => {
  expect(() => resolve({ ...small, model_type: 'olmo3', ...change })).toThrow(message);
});

test('OLMoE: norms over all heads, norms before attention and experts on all layers', () => {
  const c = resolve({ ...small, model_type: 'olmoe', num_experts: 8, num_experts_per_tok: 3 });
  expect(c).toMatchObject({ inputNorms: true, postNorms: false, wholeQkNorm: true, qkvBias: false });
  expect(c.moeLayers).toEqual([true, true, true, true, true]);
  expect(c.moe).toMatchObject({
    numExperts: 8,
    topK: 3,
    intermediateSize: 2048,
    score: 'softmax',
    normalizeTopK: false,
    correctionBias: false,
    sharedIntermediateSize: 0,
  });
  expect(() => resolve({ ...small, model_type: 'olmoe', clip_qkv: 8 })).toThrow(/clip_qkv/);
});

test('tensors of a layer', () => {
  const file = path.join(CONFORMANCE, 'models', 'olmo3', 'actor', 'config.json');
  const names = tensorMapping(resolve(JSON.parse(readFileSync(file, 'utf8')) as object));
  const layer = names.filter(({ hf }) => hf.startsWith('model.layers.1.') && hf.includes('norm'));
  expect(layer.map(({ hf, param, shape }) => [hf.slice(15), param.slice(9), shape])).toEqual([
    ['self_attn.q_norm.weight', 'attn.q_norm.weight', [24]],
    ['self_attn.k_norm.weight', 'attn.k_norm.weight', [12]],
    ['post_attention_layernorm.weight', 'attn_post_norm.weight', [24]],
    ['post_feedforward_layernorm.weight', 'mlp_post_norm.weight', [24]],
  ]);
});
