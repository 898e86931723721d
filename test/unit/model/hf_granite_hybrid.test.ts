import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import { resolve, small } from './small_config';

// Granite 4: layers of Mamba 2 and of attention, with experts and without.

const raw = {
  ...small,
  model_type: 'granitemoehybrid',
  layer_types: ['mamba', 'attention', 'mamba', 'mamba'],
  intermediate_size: 10,
  shared_intermediate_size: 20,
  num_local_experts: 6,
  num_experts_per_tok: 2,
  mamba_n_heads: 8,
  mamba_n_groups: 2,
  mamba_d_state: 7,
  embedding_multiplier: 12,
  attention_multiplier: 0.3,
  residual_multiplier: 0.22,
  logits_scaling: 8,
};

test('experts beside a shared one, heads that make up twice the width, factors', () => {
  const c = resolve(raw);
  expect(architectureName(c)).toBe('GraniteMoeHybridForCausalLM');
  expect(c).toMatchObject({
    positions: 'none',
    embeddingScale: 12,
    attentionScale: 0.3,
    residualScale: 0.22,
    logitsScaling: 8,
    linearLayers: [true, false, true, true],
    moeLayers: [true, true, true, true],
    bareLayers: [],
    moe: {
      numExperts: 6,
      topK: 2,
      intermediateSize: 10,
      sharedIntermediateSize: 20,
      sharedGate: false,
      score: 'softmax',
      normalizeTopK: true,
    },
    linear: {
      rule: 'mamba2',
      keyHeads: 2,
      valueHeads: 8,
      keyDim: 7,
      valueDim: 16,
      convBias: true,
      leastStep: 0,
    },
  });
  const named = tensorMapping(c).filter(({ hf }) => hf.startsWith('model.layers.0.'));
  expect(named.map(({ hf, shape }) => [hf.slice(15), shape]).filter((_, i) => i < 12)).toEqual([
    ['input_layernorm.weight', [64]],
    ['mamba.in_proj.weight', [292, 64]],
    ['mamba.conv1d.weight', [156, 1, 4]],
    ['mamba.conv1d.bias', [156]],
    ['mamba.A_log', [8]],
    ['mamba.dt_bias', [8]],
    ['mamba.D', [8]],
    ['mamba.norm.weight', [128]],
    ['mamba.out_proj.weight', [64, 128]],
    ['post_attention_layernorm.weight', [64]],
    ['block_sparse_moe.router.layer.weight', [6, 64]],
    ['shared_mlp.input_linear.weight', [40, 64]],
  ]);
  expect(named.filter(({ hf }) => hf.includes('block_sparse_moe.input_linear'))).toHaveLength(6);
});

test('without experts, with positions', () => {
  const dense = { ...raw, num_local_experts: 0, num_experts_per_tok: 0, position_embedding_type: 'rope' };
  const c = resolve({ ...dense, rope_theta: 1000, layer_types: new Array(4).fill('attention') });
  expect(c).toMatchObject({ positions: 'rope', intermediateSize: 20, moe: null, linear: null });
  expect(c.linearLayers).toEqual([]);
  expect(c.ropeInvFreq[1]).toBeCloseTo(1000 ** (-1 / 8), 15);
  expect(
    tensorMapping(c)
      .filter(({ hf }) => hf.includes('layers.3.shared_mlp'))
      .map(({ shape, param }) => [shape, param]),
  ).toEqual([
    [[40, 64], 'layers.3.mlp.in.weight'],
    [[64, 20], 'layers.3.mlp.out.weight'],
  ]);
  const types = raw.layer_types.map((type) => (type === 'mamba' ? 'linear_attention' : 'full_attention'));
  expect(resolve({ ...raw, layer_types: types })).toEqual(resolve(raw));
  expect(resolve({ ...raw, layer_types: null, layers_block_type: types })).toEqual(resolve(raw));
});

test.each([
  [[0.1, Number.POSITIVE_INFINITY], 0.1],
  [[0, { __float__: 'Infinity' }], 0],
  [null, 0],
])('time_step_limit %j', (time_step_limit, least) => {
  expect(resolve({ ...raw, time_step_limit }).linear?.leastStep).toBe(least);
});

test.each([
  [{ time_step_limit: [0, 0.1] }, /time_step_limit.*supported: a number of 0 or more, and Infinity/],
  [{ time_step_limit: [-1, Number.POSITIVE_INFINITY] }, /time_step_limit/],
  [{ time_step_limit: 3 }, /time_step_limit/],
  [{ mamba_d_head: 20 }, /mamba_n_heads 8 of mamba_d_head 20: expected mamba_expand \* hidden_size = 128/],
  [{ mamba_n_heads: 6 }, /mamba_n_heads 6 of mamba_d_head auto/],
  [{ mamba_n_groups: 3 }, /mamba_n_heads 8 does not divide by mamba_n_groups 3/],
  [{ mamba_d_state: 512 }, /mamba_d_state 512: expected at most 256/],
  [{ mamba_d_conv: 5 }, /mamba_d_conv 5/],
  [{ mamba_proj_bias: true }, /mamba_proj_bias/],
  [{ hidden_act: 'gelu' }, /hidden_act "gelu" is not supported beside layers of Mamba 2/],
  [{ layer_types: ['mamba'] }, /layer_types has 1 entries/],
  [{ layer_types: ['mamba', 'mamba', 'mamba', 'rnn'] }, /layer_types\[3\] "rnn"/],
  [{ num_experts_per_tok: 0 }, /num_experts_per_tok 0 of 6 experts/],
])('%j is refused', (change, message) => {
  expect(() => resolve({ ...raw, ...change })).toThrow(message);
});
