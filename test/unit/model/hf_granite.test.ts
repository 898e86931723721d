import { readFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { CONFORMANCE } from '../../helpers/conformance';

const resolve = (raw: object, head: 'lm' | 'value' = 'lm'): NativeModelConfig =>
  resolveModelConfig(raw, head, 'config.json').native;
const small = { hidden_size: 32, num_attention_heads: 4, num_key_value_heads: 2, num_hidden_layers: 2 };
const FACTORS = {
  embedding_multiplier: 12,
  attention_multiplier: 0.015625,
  residual_multiplier: 0.22,
  logits_scaling: 8,
};
const layerOf = (name: string): [string, string, number[]][] => {
  const file = path.join(CONFORMANCE, 'models', name, 'actor', 'config.json');
  return tensorMapping(resolve(JSON.parse(readFileSync(file, 'utf8')) as object))
    .filter(({ hf, part = 0 }) => hf.startsWith('model.layers.1.') && part < 2)
    .map(({ hf, param, shape }) => [hf.slice(15), param.slice(9), shape]);
};

test.each(['granite', 'granitemoe'])(
  '%s: embeddings, scores, layers and logits have a factor each',
  (model_type) => {
    const model = { ...small, model_type, ...FACTORS };
    const c = resolve(model);
    expect(c).toMatchObject({
      embeddingScale: 12,
      attentionScale: 0.015625,
      residualScale: 0.22,
      logitsScaling: 8,
      finalSoftcap: 0,
      qkvBias: false,
      outputBias: false,
      mlpBias: false,
      ropePairs: false,
    });
    expect(resolve(model, 'value')).toMatchObject({ residualScale: 0.22, logitsScaling: 1 });
    expect(resolve({ ...small, model_type })).toMatchObject({
      embeddingScale: 1,
      attentionScale: 1, // not 1 / sqrt(head_dim)
      residualScale: 1,
      logitsScaling: 1,
    });
    expect(resolve({ ...small, model_type, attention_bias: true })).toMatchObject({
      qkvBias: true,
      outputBias: true,
      mlpBias: false,
    });
    for (const key of Object.keys(FACTORS))
      for (const wrong of [0, -1, '8', Number.NaN])
        expect(() => resolve({ ...small, model_type, [key]: wrong })).toThrow(
          new RegExp(`config.json: ${key}`),
        );
  },
);

test('biases of an MLP are of the dense one', () => {
  expect(resolve({ ...small, model_type: 'granite', mlp_bias: true }).mlpBias).toBe(true);
  expect(resolve({ ...small, model_type: 'granitemoe', mlp_bias: true }).mlpBias).toBe(false);
});

test('other families have no such factors', () => {
  expect(resolve({ ...small, model_type: 'llama', ...FACTORS })).toEqual(
    resolve({ ...small, model_type: 'llama' }),
  );
});

test('experts of all layers, whose weights are a softmax of the chosen', () => {
  const moe = { numExperts: 6, topK: 3, intermediateSize: 20, normalizeTopK: true, score: 'softmax' };
  const c = resolve({
    ...small,
    model_type: 'granitemoe',
    intermediate_size: 20,
    num_local_experts: 6,
    num_experts_per_tok: 3,
  });
  expect(c).toMatchObject({
    moe: { ...moe, sharedIntermediateSize: 0, biases: false },
    moeLayers: [true, true],
  });
  expect(resolve({ model_type: 'granitemoe' })).toMatchObject({
    numLayers: 32,
    moe: { numExperts: 8, topK: 2 },
  });
});

test('tensors of a dense layer', () => {
  expect(layerOf('granite').map(([hf]) => hf)).toEqual([
    'input_layernorm.weight',
    ...['q', 'k', 'v'].map((p) => `self_attn.${p}_proj.weight`),
    ...['q', 'k', 'v'].map((p) => `self_attn.${p}_proj.bias`),
    'self_attn.o_proj.weight',
    'self_attn.o_proj.bias',
    'post_attention_layernorm.weight',
    'mlp.gate_proj.weight',
    'mlp.up_proj.weight',
    'mlp.gate_proj.bias',
    'mlp.up_proj.bias',
    'mlp.down_proj.weight',
    'mlp.down_proj.bias',
  ]);
});

test('tensors of a layer of experts: one of each kind for all of them', () => {
  expect(layerOf('granitemoe').slice(-6)).toEqual([
    ['post_attention_layernorm.weight', 'mlp_norm.weight', [24]],
    ['block_sparse_moe.router.layer.weight', 'moe.router.weight', [6, 24]],
    ['block_sparse_moe.input_linear.weight', 'moe.experts.0.in.weight', [6, 56, 24]],
    ['block_sparse_moe.input_linear.weight', 'moe.experts.1.in.weight', [6, 56, 24]],
    ['block_sparse_moe.output_linear.weight', 'moe.experts.0.out.weight', [6, 24, 28]],
    ['block_sparse_moe.output_linear.weight', 'moe.experts.1.out.weight', [6, 24, 28]],
  ]);
});
