import { readFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { linearColumns } from '../../../ts/model/linear_columns';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import { tensorProblem } from '../../../ts/model/tensor_parts';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { CONFORMANCE } from '../../helpers/conformance';

const configOf = (name: string): Record<string, unknown> =>
  JSON.parse(readFileSync(path.join(CONFORMANCE, 'models', name, 'actor', 'config.json'), 'utf8'));
const resolve = (config: object): NativeModelConfig => resolveModelConfig(config, 'lm', 'config.json').native;

test('the conformance model: short convolutions with biases, and attention with norms of queries and keys', () => {
  const c = resolve(configOf('lfm2'));
  expect(c).toMatchObject({
    qkNorm: true,
    normEps: 1e-3,
    tiedEmbeddings: false,
    intermediateSize: 32, // of 40, two thirds, in whole blocks of 8
    linearLayers: [true, false, true, false],
    moe: null,
  });
  expect(c.linear).toEqual({
    rule: 'short_conv',
    keyHeads: 24,
    valueHeads: 24,
    keyDim: 0,
    valueDim: 1,
    matrices: 'joined',
    convBias: true,
    convWidth: 3,
    leastStep: 0,
    betaScale: 1,
    normEps: 1e-3,
  });
  expect(linearColumns(c.linear as NonNullable<typeof c.linear>)).toBe(3 * 24);
  expect(tensorProblem(5, { ...c, numHeads: 5 })).toBe(
    'expected a divisor of the 24 channels of the short convolution',
  );
  expect(architectureName(c)).toBe('Lfm2ForCausalLM');
  const names = tensorMapping(c).map(({ hf, shape }) => [hf, shape]);
  expect(names).toEqual(
    expect.arrayContaining([
      ['model.layers.0.operator_norm.weight', [24]],
      ['model.layers.0.conv.in_proj.bias', [72]],
      ['model.layers.0.conv.conv.weight', [24, 1, 3]],
      ['model.layers.1.self_attn.q_layernorm.weight', [6]],
      ['model.layers.1.self_attn.out_proj.weight', [24, 24]],
      ['model.layers.3.feed_forward.w2.weight', [24, 32]],
      ['model.embedding_norm.weight', [24]],
    ]),
  );
});

test('experts behind the first layers, by sigmoids whose sum has an eps', () => {
  const c = resolve(configOf('lfm2_moe'));
  expect(c).toMatchObject({
    headDim: 8,
    tiedEmbeddings: true,
    moeLayers: [false, true, true, true],
    linear: { convWidth: 2, convBias: false },
  });
  expect(c.moe).toMatchObject({
    numExperts: 6,
    topK: 2,
    intermediateSize: 10,
    sharedIntermediateSize: 0,
    score: 'sigmoid',
    correctionBias: true,
    wideLogits: false,
    normalizeTopK: true,
    normalizerEps: 1e-6,
    besideMlp: false,
    routedScale: 1.5,
  });
  expect(architectureName(c)).toBe('Lfm2MoeForCausalLM');
  const names = tensorMapping(c).map(({ hf }) => hf);
  expect(names).toEqual(
    expect.arrayContaining([
      'model.layers.0.feed_forward.w1.weight',
      'model.layers.1.feed_forward.gate.weight',
      'model.layers.1.feed_forward.expert_bias',
      'model.layers.3.feed_forward.experts.5.w3.weight',
    ]),
  );
  const without = resolve({ ...configOf('lfm2_moe'), use_expert_bias: false, num_dense_layers: 9 });
  expect(without).toMatchObject({ moe: null, moeLayers: [] });
});

// As LiquidAI/LFM2-1.2B has it.
test('a published model', () => {
  const c = resolve({
    model_type: 'lfm2',
    hidden_size: 2048,
    block_ff_dim: 12288,
    block_multiple_of: 256,
    block_ffn_dim_multiplier: 1.0,
    block_auto_adjust_ff_dim: true,
    conv_L_cache: 3,
    full_attn_idxs: [2, 5, 8, 10, 12, 14],
    num_hidden_layers: 16,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    rope_theta: 1000000.0,
    vocab_size: 65536,
  });
  const sizes = tensorMapping(c).map(({ shape }) => shape.reduce((product, n) => product * n, 1));
  expect(sizes.reduce((sum, n) => sum + n, 0)).toBe(1_170_340_608);
});

test.each<[object, number]>([
  [{ block_auto_adjust_ff_dim: false }, 40],
  [{ block_ffn_dim_multiplier: null, block_multiple_of: 1 }, 26],
  [{ block_ffn_dim_multiplier: 1.3 }, 40],
  [{ block_ff_dim: null, intermediate_size: 60 }, 40],
])('%j: an MLP of %d', (change, size) => {
  expect(resolve({ ...configOf('lfm2'), ...change }).intermediateSize).toBe(size);
});

test('layers are of attention where nothing says otherwise', () => {
  const attends = resolve({ ...configOf('lfm2'), full_attn_idxs: null });
  expect(attends).toMatchObject({ linear: null, linearLayers: [] });
  const typed = { ...configOf('lfm2'), layer_types: ['conv', 'conv', 'full_attention', 'conv'] };
  expect(resolve(typed).linearLayers).toEqual([true, true, false, true]);
});

test.each<[object, RegExp]>([
  [{ conv_L_cache: 5 }, /conv_L_cache 5 is not supported; supported: 1 to 4/],
  [{ layer_types: ['conv'] }, /layer_types has 1 entries but the model has 4 layers/],
  [
    { layer_types: ['conv', 'conv', 'conv', 'linear_attention'] },
    /layer_types\[3\] "linear_attention" is not supported; supported: conv, full_attention/,
  ],
  [{ model_type: 'lfm2_moe' }, /layer_types: expected conv or full_attention per layer/],
])('%j is refused', (change, message) => {
  expect(() => resolve({ ...configOf('lfm2'), ...change })).toThrow(message);
});
