import { readFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { tensorMapping } from '../../../ts/model/tensor_names';
import { CONFORMANCE } from '../../helpers/conformance';

const resolve = (raw: object) => resolveModelConfig(raw, 'lm', 'config.json');
const small = {
  model_type: 'glm4',
  hidden_size: 32,
  num_attention_heads: 4,
  num_hidden_layers: 2,
  head_dim: 16,
};

test('GLM-4: half of a head turns, in pairs side by side, between norms before and behind', () => {
  const { native: c } = resolve(small);
  expect(c).toMatchObject({
    headDim: 16,
    numKvHeads: 2,
    inputNorms: true,
    postNorms: true,
    ropePairs: true,
    qkNorm: false,
    qkvBias: true,
    outputBias: false,
    mlpBias: false,
    attentionScale: 1 / 4,
    residualScale: 1,
  });
  expect(Array.from(c.ropeInvFreq)).toEqual([0, 1, 2, 3].map((i) => 10000 ** (-(2 * i) / 8)));
  expect(resolve({ ...small, attention_bias: false }).native.qkvBias).toBe(false);
  expect(resolve({ ...small, partial_rotary_factor: 0.25 }).native.ropeInvFreq).toHaveLength(2);
  const five = { rope_type: 'default', rope_theta: 500, partial_rotary_factor: 1 };
  expect(resolve({ ...small, rope_parameters: five }).native.ropeInvFreq).toHaveLength(8);
  expect(resolve({ ...small, model_type: 'glm4_moe', num_key_value_heads: 2 }).native.ropePairs).toBe(false);
});

test('GLM-4 when config.json does not say', () => {
  const { native, eosTokenIds } = resolve({ model_type: 'glm4' });
  expect(native).toMatchObject({
    vocabSize: 151552,
    numLayers: 40,
    numHeads: 32,
    numKvHeads: 2,
    headDim: 128,
    intermediateSize: 13696,
    maxPositions: 131072,
    normEps: 0.00000015625,
  });
  expect(eosTokenIds).toEqual([151329, 151336, 151338]);
  expect(resolve({ model_type: 'glm4', eos_token_id: 7 }).eosTokenIds).toEqual([7]);
});

test('tensors of a layer', () => {
  const file = path.join(CONFORMANCE, 'models', 'glm4', 'actor', 'config.json');
  const names = tensorMapping(resolve(JSON.parse(readFileSync(file, 'utf8')) as object).native);
  const layer = names.filter(({ hf }) => hf.startsWith('model.layers.1.') && !hf.includes('self_attn.'));
  expect(layer.map(({ hf, param, shape }) => [hf.slice(15), param.slice(9), shape])).toEqual([
    ['input_layernorm.weight', 'attn_norm.weight', [24]],
    ['post_self_attn_layernorm.weight', 'attn_post_norm.weight', [24]],
    ['post_attention_layernorm.weight', 'mlp_norm.weight', [24]],
    ['mlp.gate_up_proj.weight', 'mlp.in.weight', [56, 24]],
    ['mlp.down_proj.weight', 'mlp.out.weight', [24, 28]],
    ['post_mlp_layernorm.weight', 'mlp_post_norm.weight', [24]],
  ]);
});

test('ERNIE 4.5: all of a head turns, in pairs side by side; use_bias is of every matrix', () => {
  const { native: c } = resolve({ ...small, model_type: 'ernie4_5', num_key_value_heads: null });
  expect(c).toMatchObject({
    headDim: 16,
    numKvHeads: 4,
    postNorms: false,
    ropePairs: true,
    qkvBias: false,
    tiedEmbeddings: true,
  });
  expect(c.ropeInvFreq).toHaveLength(8);
  expect(c.ropeInvFreq[1]).toBeCloseTo(500000 ** (-1 / 8), 15);
  expect(resolve({ ...small, model_type: 'ernie4_5', use_bias: true }).native).toMatchObject({
    qkvBias: true,
    outputBias: true,
    mlpBias: true,
  });
  expect(() => resolve({ ...small, model_type: 'ernie4_5', partial_rotary_factor: 0.5 })).toThrow(
    /partial_rotary_factor 0.5 is not supported for this model_type/,
  );
});

test('GLM-4 before 0414: no norms behind attention and MLP, gate and up in one', () => {
  const { native: c } = resolve({ ...small, model_type: 'glm' });
  const { family: _, ...same } = resolve({ ...small, model_type: 'glm4' }).native;
  expect(c).toEqual({ ...same, family: 'glm', postNorms: false });
  expect(
    tensorMapping(c)
      .filter(({ hf }) => hf.startsWith('model.layers.0.'))
      .map(({ hf }) => hf.slice(15)),
  ).toEqual([
    'input_layernorm.weight',
    'self_attn.q_proj.weight',
    'self_attn.k_proj.weight',
    'self_attn.v_proj.weight',
    'self_attn.q_proj.bias',
    'self_attn.k_proj.bias',
    'self_attn.v_proj.bias',
    'self_attn.o_proj.weight',
    'post_attention_layernorm.weight',
    'mlp.gate_up_proj.weight',
    'mlp.down_proj.weight',
  ]);
});
