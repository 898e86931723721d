import { readFileSync } from 'node:fs';
import path from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { planWrite } from '../../../ts/checkpoint/write_plan';
import { checkLayout } from '../../../ts/engine/check_layout';
import { trainingFlops } from '../../../ts/engine/flops';
import { adapterTargets } from '../../../ts/model/adapter_sites';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { ONE_STAGE } from '../../../ts/model/pipeline_parts';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import { tensorProblem } from '../../../ts/model/tensor_parts';
import type { NativeModelConfig } from '../../../ts/native/bridge';

const models = path.join(__dirname, '../../fixtures/conformance/models');
const recorded = (name: string): Record<string, unknown> =>
  JSON.parse(readFileSync(path.join(models, name, 'actor/config.json'), 'utf8'));
const resolve = (raw: object): NativeModelConfig => resolveModelConfig(raw, 'lm', 'config.json').native;

test.each([
  ['qwen3_next', 'Qwen3NextForCausalLM', [true, false, true], [true, false, true]],
  ['qwen3_5', 'Qwen3_5ForCausalLM', [true, false, true], []],
  ['qwen3_5_moe', 'Qwen3_5MoeForCausalLM', [false, true, true], [true, true, true]],
] as const)('the conformance model %s', (name, architecture, linearLayers, moeLayers) => {
  const c = resolve(recorded(name));
  expect(c).toMatchObject({
    attentionGate: true,
    gatesApart: false,
    qkNorm: true,
    normUnitOffset: true,
    linearLayers,
    moeLayers,
  });
  expect(c.linear).toEqual({
    rule: 'gated_delta',
    convBias: false,
    convWidth: 4,
    leastStep: 0,
    keyHeads: 2,
    valueHeads: 4,
    keyDim: 6,
    valueDim: 5,
    matrices: name === 'qwen3_next' ? 'by_key_head' : 'joined',
    betaScale: 1,
    normEps: c.normEps,
  });
  expect(c.ropeInvFreq).toEqual(Float64Array.of(1, 1000 ** -0.5)); // half of heads of 8 turns
  expect(architectureName(c)).toBe(architecture);
});

test('defaults of the Hugging Face classes', () => {
  const next = resolve({ model_type: 'qwen3_next' });
  expect(next).toMatchObject({ numLayers: 48, hiddenSize: 2048, numHeads: 16, numKvHeads: 2, headDim: 256 });
  expect(next.moe).toMatchObject({
    numExperts: 512,
    topK: 10,
    sharedIntermediateSize: 512,
    normalizeTopK: true,
  });
  expect(next.linear).toMatchObject({ keyHeads: 16, valueHeads: 32, keyDim: 128, valueDim: 128 });
  expect(next.linearLayers.slice(0, 5)).toEqual([true, true, true, false, true]);
  expect(next.ropeInvFreq).toHaveLength(32); // a quarter of 256 turns
  expect(resolve({ model_type: 'qwen3_next', full_attention_interval: 2 }).linearLayers[1]).toBe(false);
  expect(resolve({ model_type: 'qwen3_5', text_config: {} })).toMatchObject({
    family: 'qwen3_5_text',
    vocabSize: 248320,
    intermediateSize: 12288,
    numKvHeads: 4,
    moe: null,
  });
  const moe = resolve({ model_type: 'qwen3_5_moe', text_config: { norm_topk_prob: false } });
  expect(moe).toMatchObject({ family: 'qwen3_5_moe_text', numLayers: 40 });
  expect(moe.moe).toMatchObject({ numExperts: 256, topK: 8, normalizeTopK: true }); // always, in transformers
  expect(moe.moeLayers.every(Boolean)).toBe(true);
});

test.each([
  [{ linear_conv_kernel_dim: 5 }, /linear_conv_kernel_dim 5 is not supported; supported: 1 to 4/],
  [{ linear_key_head_dim: 512 }, /linear_key_head_dim 512: expected at most 256/],
  [{ linear_num_value_heads: 3 }, /linear_num_value_heads 3 does not divide by linear_num_key_heads 2/],
  [{ hidden_act: 'gelu' }, /hidden_act "?gelu"? is not supported/],
  [{ layer_types: ['full_attention'] }, /layer_types has 1 entries but the model has 3 layers/],
  [{ layer_types: ['sliding_attention', 'full_attention', 'full_attention'] }, /layer_types\[0\]/],
])('%p is refused', (changes, message) => {
  expect(() => resolve({ ...recorded('qwen3_next'), ...changes })).toThrow(message);
});

const layout = (parallel: object, ulysses = 1) => ({
  ulysses,
  parallel: { tp: 1, cp: 1, ep: 1, etp: 1, sequenceParallel: false, ...parallel },
  pipeline: ONE_STAGE,
});

test('ranks that share matrices or rows share key heads', () => {
  const config = resolve(recorded('qwen3_next'));
  const check = (...args: Parameters<typeof layout>) =>
    checkLayout('test', layout(...args) as Parameters<typeof checkLayout>[1], { config, dir: 'm' });
  expect(() => check({ tp: 2, ep: 2 })).not.toThrow();
  expect(() => check({ cp: 2 })).not.toThrow();
  expect(() => check({}, 2)).not.toThrow();
  expect(() => check({ tp: 2, cp: 2 })).toThrow(
    /parallel.tp 2 x parallel.cp 2 x parallel.ulysses 1: expected a divisor of the 2 key heads of the linear attention of the model in m/,
  );
  expect(() => check({}, 4)).toThrow(/parallel.ulysses 4: expected a divisor of the 2 key heads/);
  expect(tensorProblem(4, config)).toMatch(/2 key heads of the linear attention/);
});

test('files of the hub: one tensor for all experts, parts that are no language model, layers for further tokens', () => {
  const { mapping, stored, config, predictionLayers } = loadModelDirectory(
    path.join(models, 'qwen3_5_moe/actor'),
    'lm',
  );
  const one = mapping.filter(({ hf }) => hf === 'model.layers.2.mlp.experts.gate_up_proj');
  expect(one.map(({ part, param }) => [part, param])).toEqual(
    Array.from({ length: 6 }, (_, e) => [e, `layers.2.moe.experts.${e}.in.weight`]),
  );
  expect(one[0]).toMatchObject({ shape: [6, 24, 20], rows: 24, transpose: false });
  expect([...stored.keys()].some((hf) => /mtp|visual/.test(hf))).toBe(false);
  expect([...predictionLayers.keys()]).toEqual(['mtp.fc.weight', 'mtp.norm.weight']);
  // What transformers writes of the language model alone.
  expect(tensorMapping(config).some(({ hf }) => hf === 'model.layers.2.mlp.experts.5.up_proj.weight')).toBe(
    true,
  );
  const { files } = planWrite('out', 'model', mapping, () => 'BF16');
  expect(files[0]?.tensors.filter(({ label }) => label?.endsWith('experts.gate_up_proj'))).toHaveLength(18);
});

test('adapters: projections of both kinds of attention, none on the convolution', () => {
  const config = resolve(recorded('qwen3_5'));
  const targets = adapterTargets(config, tensorMapping(config));
  const of = (layer: number) =>
    targets.flatMap(({ module }) =>
      module.startsWith(`model.layers.${layer}.`) ? [module.split('.').at(-1)] : [],
    );
  expect(of(0)).toEqual([
    ...['in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a', 'out_proj'],
    ...['gate_proj', 'up_proj', 'down_proj'],
  ]);
  expect(of(1).slice(0, 4)).toEqual(['q_proj', 'k_proj', 'v_proj', 'o_proj']);
  expect(targets.find(({ module }) => module.endsWith('0.linear_attn.in_proj_z'))).toMatchObject({
    param: 'layers.0.delta.in.weight',
    row: 2 * 2 * 6 + 4 * 5,
    rows: 20,
  });
});

test('operations: states instead of squares', () => {
  const c = resolve(recorded('qwen3_5'));
  const layers = 3 * 3 * 20 * 28;
  const attention = 20 * 8 * (2 * (4 + 2) + 4);
  const rule = 20 * (24 + 20 + 20 + 8 + 20) + 3 * 20 * 6;
  const matrices = layers + attention + 2 * rule + 2 * 128 * 20;
  expect(trainingFlops(c, [10])).toBe(6 * matrices * 10 + 6 * 100 * 8 * 4);
});
