import { readFileSync } from 'node:fs';
import path from 'node:path';
import { planLoad } from '../../../ts/checkpoint/load_plan';
import { planWrite } from '../../../ts/checkpoint/write_plan';
import { trainingFlops } from '../../../ts/engine/flops';
import { adapterTargets } from '../../../ts/model/adapter_sites';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { architectureName, fileTensors, tensorMapping } from '../../../ts/model/tensor_names';
import type { NativeModelConfig } from '../../../ts/native/bridge';
import { planBuckets } from '../../../ts/weights/plan_buckets';

const models = path.join(__dirname, '../../fixtures/conformance/models');
const recorded = JSON.parse(readFileSync(path.join(models, 'gpt_oss/actor/config.json'), 'utf8'));
const resolve = (raw: object): NativeModelConfig => resolveModelConfig(raw, 'lm', 'config.json').native;

test('the conformance model', () => {
  const c = resolve(recorded);
  expect(c).toMatchObject({
    attentionSinks: true,
    qkvBias: true,
    outputBias: true,
    slidingWindows: [5, 0, 5],
    activation: 'clamped_swiglu',
    moeLayers: [true, true, true],
  });
  expect(c.moe).toMatchObject({
    numExperts: 6,
    topK: 3,
    intermediateSize: 12,
    normalizeTopK: true,
    biases: true,
  });
  expect(architectureName(c)).toBe('GptOssForCausalLM');
  expect(resolve({ ...recorded, attention_bias: false })).toMatchObject({
    qkvBias: false,
    outputBias: false,
  });
});

test('defaults of the Hugging Face class: those of gpt-oss-120b', () => {
  const c = resolve({ model_type: 'gpt_oss' });
  expect(c).toMatchObject({ numLayers: 36, numHeads: 64, numKvHeads: 8, headDim: 64, hiddenSize: 2880 });
  expect(c.slidingWindows.slice(0, 4)).toEqual([128, 0, 128, 0]);
  expect(c.moe).toMatchObject({ numExperts: 128, topK: 4, intermediateSize: 2880 });
  expect(c.maxPositions).toBe(131072);
  // yarn without whole numbers as the ends of its ramp: transformers' _compute_yarn_parameters of these values.
  expect(c.ropeAttentionFactor).toBeCloseTo(0.1 * Math.log(32) + 1, 12);
  const end = (rotations: number): number =>
    (64 * Math.log(4096 / (rotations * 2 * Math.PI))) / (2 * Math.log(150000));
  const share = (10 - end(32)) / (end(1) - end(32));
  expect(c.ropeInvFreq[10]).toBeCloseTo((share / 32 + 1 - share) * 150000 ** (-20 / 64), 12);
  const hub = {
    rope_theta: 150000,
    rope_scaling: {
      rope_type: 'yarn',
      factor: 32,
      beta_fast: 32,
      beta_slow: 1,
      truncate: false,
      original_max_position_embeddings: 4096,
    },
  };
  expect(resolve({ model_type: 'gpt_oss', ...hub }).ropeInvFreq).toEqual(c.ropeInvFreq);
});

test.each([
  [{ swiglu_limit: 5 }, /swiglu_limit 5 is not supported; supported: 7/],
  [{ swiglu_alpha: 1 }, /swiglu_alpha 1 is not supported; supported: 1.702/],
  [{ layer_types: ['full_attention'] }, /layer_types has 1 entries/],
  [{ num_experts: 7 }, /num_experts 7 and num_local_experts 6/],
  [
    { quantization_config: { quant_method: 'fp8', fmt: 'e5m2' } },
    /quantised weights are not supported .*fmt "e5m2", expected "e4m3": .*FineGrainedFP8Config\(dequantize=True\).*save_pretrained/,
  ],
  [{ quantization_config: { quant_method: 'gptq' } }, /"gptq": use the .*bfloat16 checkpoint/],
  [{ quantization_config: { bits: 4 } }, /quantised by an unnamed quant_method: use the/],
])('%p is refused', (changes, message) => {
  expect(() => resolve({ ...recorded, ...changes })).toThrow(message);
});

test('MXFP4 is read, of this family alone', () => {
  const quantized = { quantization_config: { quant_method: 'mxfp4', modules_to_not_convert: ['lm_head'] } };
  expect(resolve({ ...recorded, ...quantized })).toEqual(resolve(recorded));
  expect(() => resolve({ model_type: 'llama', ...quantized })).toThrow(
    /these are weights in MXFP4 of "llama"/,
  );
});

test('tensors that hold all experts: one in files, a parameter for each expert', () => {
  const c = resolve({ ...recorded, num_hidden_layers: 1, layer_types: ['full_attention'] });
  const mapping = tensorMapping(c);
  const shapes = Object.fromEntries(fileTensors(mapping).map(([{ hf, shape }]) => [hf, shape]));
  const layer = 'model.layers.0';
  expect(shapes).toMatchObject({
    [`${layer}.self_attn.sinks`]: [4],
    [`${layer}.self_attn.o_proj.bias`]: [20],
    [`${layer}.mlp.router.weight`]: [6, 20],
    [`${layer}.mlp.router.bias`]: [6],
    [`${layer}.mlp.experts.gate_up_proj`]: [6, 20, 24],
    [`${layer}.mlp.experts.gate_up_proj_bias`]: [6, 24],
    [`${layer}.mlp.experts.down_proj`]: [6, 12, 20],
    [`${layer}.mlp.experts.down_proj_bias`]: [6, 20],
  });
  expect(mapping.find(({ param }) => param === 'layers.0.moe.experts.2.in.weight')).toEqual({
    hf: `${layer}.mlp.experts.gate_up_proj`,
    shape: [6, 20, 24],
    part: 2,
    param: 'layers.0.moe.experts.2.in.weight',
    row: 0,
    rows: 24,
    transpose: true,
  });

  const [file] = planWrite('/out', 'model', mapping, () => 'BF16').files;
  const slices = new Map(file?.tensors.map((slice) => [slice.param, slice]));
  const at = (expert: number): number => slices.get(`layers.0.moe.experts.${expert}.in.weight`)?.offset ?? 0;
  expect(at(3) - at(0)).toBe(3 * 20 * 24 * 2);
  const stored = new Map(
    fileTensors(mapping).map(([{ hf, shape }], i) => [
      hf,
      { name: hf, shape, dtype: 'F32', file: 'f', fileSize: 0, offset: 1e6 * i, bytes: 0 },
    ]),
  );
  const loaded = planLoad('dir', stored, mapping).files[0]?.tensors ?? [];
  expect(loaded).toHaveLength(mapping.length);
  const bias = (expert: number): number =>
    loaded.find(({ param }) => param === `layers.0.moe.experts.${expert}.out.bias`)?.offset ?? 0;
  expect(bias(5) - bias(0)).toBe(5 * 20 * 4);
  stored.delete(`${layer}.mlp.experts.down_proj`);
  expect(() => planLoad('dir', stored, mapping)).toThrow(
    /1 missing:\s+model.layers.0.mlp.experts.down_proj \[6, 12, 20\]/,
  );

  // A row of such a tensor is an expert, whole.
  const buckets = planBuckets('exportWeights', mapping, 'bfloat16', 20 * 24 * 2 * 2);
  const chunks = buckets
    .flatMap((bucket) => bucket.chunks)
    .filter(({ label }) => label.endsWith('gate_up_proj'));
  expect(chunks).toHaveLength(6);
  expect(chunks[4]).toMatchObject({
    param: 'layers.0.moe.experts.4.in.weight',
    transpose: true,
    first: 0,
    count: 20,
  });
  const parts = buckets.flatMap((bucket) => bucket.parts).filter(({ name }) => name.endsWith('gate_up_proj'));
  expect(parts.map(({ row, rows }) => [row, rows])).toEqual([
    [0, 2],
    [2, 2],
    [4, 2],
  ]);
});

test('adapters are for attention; a token meets the chosen experts', () => {
  const c = resolve(recorded);
  const targets = adapterTargets(c, tensorMapping(c)).map(({ module }) => module);
  expect(targets.slice(0, 4)).toEqual(['q', 'k', 'v', 'o'].map((p) => `model.layers.0.self_attn.${p}_proj`));
  expect(targets).toHaveLength(3 * 4);
  const layer = 20 * 8 * 2 * (4 + 2) + 3 * 3 * 20 * 12 + 20 * 6;
  expect(trainingFlops(c, [1])).toBe(6 * (3 * layer + 2 * 128 * 20) + 6 * 8 * 4 * 3);
});
