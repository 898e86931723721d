import { resolveModelConfig } from '../../../ts/model/hf_config';
import { tensorMapping } from '../../../ts/model/tensor_names';

const resolve = (raw: object) => resolveModelConfig(raw, 'lm', 'config.json').native;
/** What its first published files say, with keys that transformers does not read. */
const trinity = {
  model_type: 'afmoe',
  vocab_size: 200192,
  hidden_size: 1024,
  intermediate_size: 3072,
  num_hidden_layers: 8,
  num_dense_layers: 2,
  num_attention_heads: 8,
  num_key_value_heads: 2,
  head_dim: 128,
  max_position_embeddings: 131072,
  global_attn_every_n_layers: 4,
  sliding_window: 2048,
  mup_enabled: true,
  num_experts: 128,
  num_experts_per_tok: 8,
  num_shared_experts: 1,
  moe_intermediate_size: 256,
  route_scale: 2.826,
  route_norm: true,
  score_func: 'sigmoid',
  n_group: 1,
  topk_group: 1,
  num_expert_groups: 1,
  num_limited_groups: 1,
  rope_scaling: null,
  rope_theta: 10000,
};

test('layers that see all have no positions, the others windows; embeddings are scaled', () => {
  expect(resolve(trinity)).toMatchObject({
    slidingWindows: [2048, 2048, 2048, 0, 2048, 2048, 2048, 0],
    secondRopeLayers: [false, false, false, true, false, false, false, true],
    secondRopeInvFreq: new Float64Array(0),
    embeddingScale: 32,
    attentionGate: true,
    gatesApart: true,
    qkNorm: true,
    inputNorms: true,
    postNorms: true,
    moeLayers: [false, false, true, true, true, true, true, true],
    moe: {
      numExperts: 128,
      topK: 8,
      intermediateSize: 256,
      sharedIntermediateSize: 256,
      sharedGate: false,
      score: 'sigmoid',
      correctionBias: true,
      normalizeTopK: true,
      routedScale: 2.826,
    },
  });
  expect(resolve({ ...trinity, mup_enabled: false }).embeddingScale).toBe(1);
  expect(resolve({ ...trinity, num_dense_layers: 8 })).toMatchObject({ moe: null, moeLayers: [] });
  const layer_types = ['full_attention', ...new Array(7).fill('sliding_attention')];
  expect(resolve({ ...trinity, layer_types })).toMatchObject({
    slidingWindows: [0, ...new Array(7).fill(2048)],
  });
});

test('gates are a matrix of their own behind queries, keys and values', () => {
  const mapping = tensorMapping(resolve(trinity));
  const of = (name: string) => mapping.find(({ hf }) => hf === `model.layers.2.${name}`);
  expect(of('self_attn.gate_proj.weight')).toMatchObject({
    param: 'layers.2.attn.qkv.weight',
    shape: [1024, 1024],
    row: 1024 + 2 * 256,
    rows: 1024,
  });
  expect(of('mlp.router.gate.weight')).toMatchObject({ param: 'layers.2.moe.router.weight' });
  expect(of('mlp.expert_bias')).toMatchObject({
    param: 'layers.2.moe.router.correction_bias',
    buffer: true,
  });
  expect(of('mlp.shared_experts.down_proj.weight')).toBeDefined();
  expect(of('pre_mlp_layernorm.weight')).toMatchObject({ param: 'layers.2.mlp_norm.weight' });
  expect(of('post_attention_layernorm.weight')).toMatchObject({ param: 'layers.2.attn_post_norm.weight' });
});

test.each([
  [{ score_func: 'softmax' }, /score_func/],
  [{ route_norm: false }, /route_norm/],
  [{ num_expert_groups: 2 }, /num_expert_groups/],
  [{ attention_bias: true }, /attention_bias/],
  [{ sliding_window: null }, /layer_types\[0\] is sliding_attention but no sliding_window/],
])('%j is refused: no published model has it', (change, message) => {
  expect(() => resolve({ ...trinity, ...change })).toThrow(message);
});
