import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import { resolve, small } from './small_config';

// Blocks of Nemotron-H, and the layers that they make.

const raw = {
  ...small,
  model_type: 'nemotron_h',
  num_hidden_layers: 9,
  hybrid_override_pattern: 'MEM*-ME*E',
  mamba_num_heads: 4,
  mamba_head_dim: 5,
  n_groups: 2,
  ssm_state_size: 6,
  n_routed_experts: 8,
  num_experts_per_tok: 3,
  moe_intermediate_size: 10,
  moe_shared_expert_intermediate_size: 14,
  routed_scaling_factor: 2.5,
};
const TYPES = ['mamba', 'moe', 'mamba', 'attention', 'mlp', 'mamba', 'moe', 'attention', 'moe'];

test('a block that looks across rows and what comes behind it are a layer', () => {
  const c = resolve(raw);
  expect(architectureName(c)).toBe('NemotronHForCausalLM');
  expect(c).toMatchObject({
    numLayers: 5,
    positions: 'none',
    gatedMlp: false,
    activation: 'relu2',
    headDim: 128,
    normEps: 1e-5,
    linearLayers: [true, true, false, true, false],
    bareLayers: [false, true, false, false, false],
    moeLayers: [true, false, false, true, true],
  });
  expect(c.linear).toEqual({
    rule: 'mamba2',
    keyHeads: 2,
    valueHeads: 4,
    keyDim: 6,
    valueDim: 5,
    matrices: 'joined',
    convBias: true,
    convWidth: 4,
    leastStep: 0.001,
    betaScale: 1,
    normEps: 1e-5,
  });
  expect(c.moe).toMatchObject({
    numExperts: 8,
    topK: 3,
    intermediateSize: 10,
    sharedIntermediateSize: 14,
    sharedGate: false,
    score: 'sigmoid',
    routedScale: 2.5,
    normalizeTopK: true,
  });
});

test('tensors have the numbers of their blocks', () => {
  const tensors = tensorMapping(resolve(raw))
    .filter(({ hf }) => !/experts\.[1-9]/.test(hf))
    .map(({ hf, shape, param }) => [hf.replace('backbone.layers.', ''), shape, param]);
  const of = (block: number) => tensors.filter(([hf]) => (hf as string).startsWith(`${block}.`));
  expect(of(2)).toEqual([
    ['2.norm.weight', [64], 'layers.1.attn_norm.weight'],
    ['2.mixer.in_proj.weight', [68, 64], 'layers.1.mamba.in.weight'],
    ['2.mixer.conv1d.weight', [44, 1, 4], 'layers.1.mamba.conv.weight'],
    ['2.mixer.conv1d.bias', [44], 'layers.1.mamba.conv.bias'],
    ['2.mixer.A_log', [4], 'layers.1.mamba.a_log'],
    ['2.mixer.dt_bias', [4], 'layers.1.mamba.dt_bias'],
    ['2.mixer.D', [4], 'layers.1.mamba.skip'],
    ['2.mixer.norm.weight', [20], 'layers.1.mamba.norm.weight'],
    ['2.mixer.out_proj.weight', [64, 20], 'layers.1.mamba.out.weight'],
  ]);
  expect(of(4)).toEqual([
    ['4.norm.weight', [64], 'layers.2.mlp_norm.weight'],
    ['4.mixer.up_proj.weight', [21504, 64], 'layers.2.mlp.in.weight'],
    ['4.mixer.down_proj.weight', [64, 21504], 'layers.2.mlp.out.weight'],
  ]);
  expect(of(8)).toEqual([
    ['8.norm.weight', [64], 'layers.4.mlp_norm.weight'],
    ['8.mixer.gate.weight', [8, 64], 'layers.4.moe.router.weight'],
    ['8.mixer.gate.e_score_correction_bias', [8], 'layers.4.moe.router.correction_bias'],
    ['8.mixer.shared_experts.up_proj.weight', [14, 64], 'layers.4.moe.shared.in.weight'],
    ['8.mixer.shared_experts.down_proj.weight', [64, 14], 'layers.4.moe.shared.out.weight'],
    ['8.mixer.experts.0.up_proj.weight', [10, 64], 'layers.4.moe.experts.0.in.weight'],
    ['8.mixer.experts.0.down_proj.weight', [64, 10], 'layers.4.moe.experts.0.out.weight'],
  ]);
  expect(tensors.at(-2)?.[0]).toBe('backbone.norm_f.weight');
  expect(tensors.at(-1)?.[0]).toBe('lm_head.weight');
});

test('experts that see a latent', () => {
  const c = resolve({ ...raw, moe_latent_size: 12 });
  expect(c.moe).toMatchObject({ latentSize: 12, intermediateSize: 10, sharedIntermediateSize: 14 });
  const tensors = tensorMapping(c)
    .filter(({ hf }) => hf.startsWith('backbone.layers.1.mixer.') && !/experts\.[1-9]/.test(hf))
    .map(({ hf, shape, param }) => [hf.slice(24), shape, param]);
  expect(tensors).toEqual([
    ['fc1_latent_proj.weight', [12, 64], 'layers.0.moe.latent.in.weight'],
    ['fc2_latent_proj.weight', [64, 12], 'layers.0.moe.latent.out.weight'],
    ['gate.weight', [8, 64], 'layers.0.moe.router.weight'],
    ['gate.e_score_correction_bias', [8], 'layers.0.moe.router.correction_bias'],
    ['shared_experts.up_proj.weight', [14, 64], 'layers.0.moe.shared.in.weight'],
    ['shared_experts.down_proj.weight', [64, 14], 'layers.0.moe.shared.out.weight'],
    ['experts.0.up_proj.weight', [10, 12], 'layers.0.moe.experts.0.in.weight'],
    ['experts.0.down_proj.weight', [12, 10], 'layers.0.moe.experts.0.out.weight'],
  ]);
  expect(resolve({ ...raw, moe_latent_size: null }).moe?.latentSize).toBe(0);
});

test('the same in the words of other versions', () => {
  const { hybrid_override_pattern: _, ...others } = raw;
  const types = TYPES.map((type) =>
    type === 'mamba' ? 'linear_attention' : type === 'attention' ? 'full_attention' : type,
  );
  for (const layers of [
    { layers_block_type: TYPES },
    { layers_block_type: types, hybrid_override_pattern: '*' },
    { layer_types: types },
    { layer_types: TYPES, layers_block_type: [...TYPES] },
  ])
    expect(resolve({ ...others, ...layers })).toEqual(resolve(raw));
  const { n_groups: groups, n_routed_experts: experts, ...rest } = raw;
  expect(resolve({ ...rest, mamba_n_groups: groups, num_local_experts: experts })).toEqual(resolve(raw));
  expect(resolve({ ...raw, hybrid_override_pattern: '**-', num_hidden_layers: 3 })).toMatchObject({
    linear: null,
    linearLayers: [],
    moe: null,
    bareLayers: [true, false],
  });
});

test.each([
  [{ hybrid_override_pattern: 'MEM*-ME*X' }, /hybrid_override_pattern\[8\] "X".*supported: M, \*, -, E/],
  [{ hybrid_override_pattern: 'ME' }, /hybrid_override_pattern has 2 entries.* 9 layers/],
  [{ hybrid_override_pattern: 'EM*-ME*E*' }, /block 0 .*before it, got none/],
  [{ hybrid_override_pattern: 'ME-*-ME*E' }, /block 2 .*got another of these/],
  [{ layers_block_type: [...TYPES.slice(1), 'rnn'] }, /layers_block_type\[8\] "rnn"/],
  [{ conv_kernel: 5 }, /conv_kernel 5.*supported: 1 to 4/],
  [{ ssm_state_size: 512 }, /ssm_state_size 512: expected at most 256/],
  [{ n_groups: 3 }, /mamba_num_heads 4 does not divide by n_groups 3/],
  [{ mlp_bias: true }, /mlp_bias true/],
  [{ tie_word_embeddings: true }, /tie_word_embeddings true/],
  [{ moe_latent_size: -1 }, /moe_latent_size/],
  [{ mamba_hidden_act: 'gelu' }, /mamba_hidden_act "gelu"/],
  [{ time_step_min: -1 }, /time_step_min/],
])('%j is refused', (change, message) => {
  expect(() => resolve({ ...raw, ...change })).toThrow(message);
});
