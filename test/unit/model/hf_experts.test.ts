import { readFileSync } from 'node:fs';
import path from 'node:path';
import { planLoad } from '../../../ts/checkpoint/load_plan';
import { planWrite } from '../../../ts/checkpoint/write_plan';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { isPredictionLayer } from '../../../ts/model/prediction_layers';
import { tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { planBuckets } from '../../../ts/weights/plan_buckets';

// The families with DeepSeek-V3's experts.

const models = path.join(__dirname, '../../fixtures/conformance/models');
const configOf = (name: string): Record<string, unknown> =>
  JSON.parse(readFileSync(path.join(models, name, 'actor', 'config.json'), 'utf8'));
const resolve = (raw: object): NativeModelConfig => resolveModelConfig(raw, 'lm', 'config.json').native;

test('the conformance models', () => {
  const glm = resolve(configOf('glm4_moe'));
  expect(glm).toMatchObject({
    qkNorm: true,
    qkvBias: true,
    outputBias: false,
    moeLayers: [false, true, true],
  });
  expect(glm.ropeInvFreq).toHaveLength(3); // 6 of the 12 numbers of a head turn
  expect(glm.ropeInvFreq[1]).toBeCloseTo(1000 ** (-2 / 6), 15);
  expect(glm.moe).toEqual({
    numExperts: 8,
    topK: 3,
    intermediateSize: 10,
    normalizeTopK: true,
    sharedIntermediateSize: 20,
    sharedGate: false,
    score: 'sigmoid',
    wideLogits: true,
    latentSize: 0,
    correctionBias: true,
    groups: 4,
    topGroups: 2,
    groupBest: 2,
    biases: false,
    routedScale: 2.5,
    normalizerEps: 0,
    besideMlp: false,
  });
  const dots = resolve(configOf('dots1'));
  expect(dots).toMatchObject({ qkNorm: true, qkvBias: false, slidingWindows: [0, 0, 6] });
  expect(dots.ropeInvFreq).toHaveLength(4);
  expect(dots.moe).toMatchObject({
    normalizeTopK: false,
    sharedIntermediateSize: 10,
    groups: 1,
    routedScale: 1.5,
  });
});

test('defaults of the Hugging Face classes', () => {
  const glm = resolve({ model_type: 'glm4_moe', head_dim: 128 });
  expect(glm).toMatchObject({ numLayers: 46, numHeads: 96, numKvHeads: 8, normEps: 1e-5, qkNorm: false });
  expect(glm.ropeInvFreq).toHaveLength(32);
  const whole = resolve({ model_type: 'glm4_moe', head_dim: 128, partial_rotary_factor: null });
  expect(whole.ropeInvFreq).toHaveLength(64);
  expect(glm.moeLayers.indexOf(true)).toBe(1);
  expect(glm.moe).toMatchObject({ numExperts: 128, topK: 8, normalizeTopK: true, routedScale: 1 });
  const experts = { n_routed_experts: 8, num_experts_per_tok: 2, n_shared_experts: 1 };
  const dots = resolve({ model_type: 'dots1', ...experts });
  expect(dots).toMatchObject({ numLayers: 62, numKvHeads: 32, hiddenSize: 4608, qkNorm: true });
  expect(dots.moeLayers.every(Boolean)).toBe(true);
  expect(dots.moe?.normalizeTopK).toBe(false);
});

test.each<[string, string, string]>([
  // transformers 5 writes this one alone.
  ['qwen3_moe', 'num_experts', 'num_local_experts'],
  ['mixtral', 'num_local_experts', 'num_experts'],
  ['glm4_moe', 'n_routed_experts', 'num_local_experts'],
  ['dots1', 'n_routed_experts', 'num_local_experts'],
  ['deepseek_v2', 'n_routed_experts', 'num_experts'],
  ['glm4_moe_lite', 'n_routed_experts', 'num_local_experts'],
  ['glm4_moe_lite', 'qk_rope_head_dim', 'head_dim'],
])('%s: %s may be named %s', (family, name, alias) => {
  const { [name]: count, ...rest } = configOf(family);
  expect(count).toEqual(expect.any(Number));
  expect(resolve({ ...rest, [alias]: count })).toEqual(resolve({ ...rest, [name]: count }));
  expect(resolve({ ...rest, [name]: count, [alias]: count })).toEqual(resolve({ ...rest, [name]: count }));
  expect(() => resolve({ ...rest, [name]: count, [alias]: 1 + Number(count) })).toThrow(
    new RegExp(`${alias} \\d+ and ${name} \\d+: expected the same`),
  );
});

test('GLM-4.5 as the hub has it: the share of a head that turns stands beside the others', () => {
  const raw = configOf('glm4_moe');
  const { rope_parameters: _, ...hub } = raw;
  const c = resolve({ ...hub, rope_theta: 1000, rope_scaling: null, partial_rotary_factor: 0.5 });
  expect(c.ropeInvFreq).toEqual(resolve(raw).ropeInvFreq);
});

test('one group of experts may be one expert', () => {
  const { rope_parameters: _, ...hub } = configOf('glm4_moe');
  const one = { n_group: 1, topk_group: 1, n_routed_experts: 1, num_experts_per_tok: 1 };
  expect(resolve({ ...hub, rope_theta: 1000, rope_scaling: null, ...one }).moe).toMatchObject({
    numExperts: 1,
    groups: 1,
  });
});

test.each<[object, RegExp]>([
  [{ n_group: 3 }, /n_group 3: expected a divisor of the 8 experts that leaves 2 or more in a group/],
  [{ n_group: 8, topk_group: 8 }, /n_group 8: expected a divisor/],
  [{ topk_group: 5 }, /topk_group 5: expected at most n_group 4/],
  [{ topk_group: 1 }, /topk_group 1: .*groups of 2 experts that have the 3 of num_experts_per_tok/],
  [{ partial_rotary_factor: 0.25 }, /partial_rotary_factor 0.25 of head_dim 12: .*got 3/],
  [{ partial_rotary_factor: 2 }, /partial_rotary_factor 2 of head_dim 12: expected a share of at most 1/],
  [{ routed_scaling_factor: 0 }, /routed_scaling_factor/],
])('no model is like that: %j', (changes, message) => {
  const { rope_parameters: _, ...hub } = configOf('glm4_moe');
  expect(() => resolve({ ...hub, ...changes })).toThrow(message);
});

describe('the correction bias is a buffer', () => {
  const mapping = tensorMapping(resolve(configOf('glm4_moe')));
  const buffers = mapping.filter((m) => m.buffer).map((m) => m.hf);

  test('under the name that Hugging Face gives it', () => {
    expect(buffers).toEqual([1, 2].map((i) => `model.layers.${i}.mlp.gate.e_score_correction_bias`));
    const names = mapping.map((m) => m.hf);
    expect(names).toContain('model.layers.1.mlp.shared_experts.down_proj.weight');
    expect(names.some((name) => name.includes('shared_expert_gate'))).toBe(false);
  });

  test('float32 in files of bfloat16', () => {
    const plan = planWrite('/x', 'model', mapping, () => 'BF16');
    const wide = plan.files.flatMap((f) => f.tensors.filter((t) => t.dtype === 'F32').map((t) => t.label));
    expect(wide).toEqual(buffers);
  });

  test('float32 in a bucket behind those of bfloat16', () => {
    const buckets = planBuckets('test', mapping, 'bfloat16', 4096);
    const last = buckets.at(-1);
    expect(last?.dtype).toBe('float32');
    expect(last?.parts.map((p) => p.name)).toEqual(buffers);
    expect(last?.bytes).toBe(2 * 8 * 4);
    for (const { dtype, parts } of buckets) expect(parts.every((p) => p.dtype === dtype)).toBe(true);
    expect(buckets.flatMap((b) => b.parts).filter((p) => p.row === 0)).toHaveLength(mapping.length);
    expect(planBuckets('test', mapping, 'float32', 2 ** 20)).toHaveLength(1);
  });
});

test('the layers that predict further tokens may be in the files of GLM-4.5 and are left out', () => {
  const config = resolve(configOf('glm4_moe'));
  expect(isPredictionLayer(config, 'model.layers.3.eh_proj.weight')).toBe(true);
  expect(isPredictionLayer(config, 'model.layers.2.mlp.gate.weight')).toBe(false);
  expect(isPredictionLayer(resolve(configOf('dots1')), 'model.layers.3.eh_proj.weight')).toBe(false);
  const stored = (name: string, shape: number[]) =>
    [name, { name, dtype: 'F32', shape, file: 'f', offset: 0, fileSize: 0 }] as const;
  const mapping = tensorMapping(config);
  const files = new Map([
    ...mapping.map((m) => stored(m.hf, m.shape)),
    stored('model.layers.3.x.weight', [2]),
  ]);
  expect(() => planLoad('d', files as never, mapping)).toThrow(/not expected in this model/);
  const ignored = (hf: string) => isPredictionLayer(config, hf);
  expect(planLoad('d', files as never, mapping, { ignored }).found.size).toBe(mapping.length);
});
