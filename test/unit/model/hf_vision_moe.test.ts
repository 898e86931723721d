import { readFileSync } from 'node:fs';
import path from 'node:path';
import { adapterTargets } from '../../../ts/model/adapter_sites';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import { visionModel } from '../../helpers/vision_model';

// qwen3_vl_moe: a mixture of experts with Qwen3-VL's tower.
type Part = Record<string, unknown>;

const raw = JSON.parse(
  readFileSync(path.join(visionModel('qwen3_vl_moe').options.model, 'config.json'), 'utf8'),
) as Record<string, Part>;
const resolve = (text: Part, whole: Part = {}, head: 'lm' | 'value' = 'lm') => {
  const config = { ...raw, ...whole, text_config: { ...raw['text_config'], ...text } };
  return resolveModelConfig(config, head, 'config.json').native;
};

/** Qwen3-VL-30B-A3B and 235B-A22B; the rest is what transformers takes. */
const published = (width: number, numbers: Part): unknown => ({
  model_type: 'qwen3_vl_moe',
  text_config: {
    hidden_size: width,
    num_key_value_heads: 4,
    head_dim: 128,
    num_experts: 128,
    num_experts_per_tok: 8,
    norm_topk_prob: true,
    rope_scaling: { mrope_interleaved: true, mrope_section: [24, 20, 20], rope_type: 'default' },
    rope_theta: 5e6,
    ...numbers,
  },
  vision_config: { out_hidden_size: width },
});
const SMALL = { num_hidden_layers: 48, num_attention_heads: 32, moe_intermediate_size: 768 };
const LARGE = { num_hidden_layers: 94, num_attention_heads: 64, moe_intermediate_size: 1536 };

// Counts of parameters and tensors: Qwen3VLMoeForConditionalGeneration of transformers, without memory.
test.each([
  ['30B-A3B', published(2048, SMALL), 31_070_754_032, 882],
  ['235B-A22B', published(4096, LARGE), 235_670_022_896, 1388],
])('%s has the tensors of transformers', (_, config, parameters, count) => {
  const { native } = resolveModelConfig(config, 'lm', 'config.json');
  expect(architectureName(native)).toBe('Qwen3VLMoeForConditionalGeneration');
  const shapes = new Map(tensorMapping(native).map(({ hf, shape }) => [hf, shape]));
  expect(shapes.size).toBe(count);
  const sizes = [...shapes.values()].map((shape) => shape.reduce((all, extent) => all * extent, 1));
  expect(sizes.reduce((a, b) => a + b, 0)).toBe(parameters);
});

test('what transformers takes where config.json says nothing', () => {
  const native = resolveModelConfig(
    { model_type: 'qwen3_vl_moe', text_config: {}, vision_config: { out_hidden_size: 2048 } },
    'lm',
    'config.json',
  ).native;
  expect(native).toMatchObject({
    family: 'qwen3_vl_moe',
    numLayers: 24,
    numKvHeads: 16,
    headDim: 128,
    tiedEmbeddings: false,
    moe: { numExperts: 60, topK: 4, intermediateSize: 1408, normalizeTopK: true, sharedIntermediateSize: 0 },
    moeLayers: new Array(24).fill(true),
    vision: { deepstackLayers: [8, 16, 24], imageToken: 151655 },
  });
  expect(native.ropeInvFreq[1]).toBeCloseTo(5e5 ** (-1 / 64), 12);
  expect([0, 1, 2].map((axis) => native.vision?.ropeAxes.filter((own) => own === axis).length)).toEqual([
    24, 20, 20,
  ]);
});

test('weights of the chosen experts are divided by their sum, and heads tied by the whole, whatever text_config says', () => {
  const native = resolve(
    { norm_topk_prob: false, tie_word_embeddings: true },
    { tie_word_embeddings: undefined },
  );
  expect(native.moe?.normalizeTopK).toBe(true);
  expect(native.tiedEmbeddings).toBe(false);
  expect(resolve({}, { tie_word_embeddings: true }).tiedEmbeddings).toBe(true);
});

test('which layers have experts, and the older name of how many', () => {
  expect(resolve({ decoder_sparse_step: 2, mlp_only_layers: [] }).moeLayers).toEqual([false, true, false]);
  expect(resolve({ mlp_only_layers: [0, 1, 2] })).toMatchObject({ moe: null, moeLayers: [] });
  expect(resolve({ num_local_experts: undefined, num_experts: 7 }).moe?.numExperts).toBe(7);
});

test.each([
  [{ num_experts: 7 }, 'lm', /text_config: num_local_experts 6 and num_experts 7: expected the same/],
  [{ num_experts_per_tok: 7 }, 'lm', /num_experts_per_tok 7 exceeds the 6 experts/],
  [{ hidden_act: 'clamp' }, 'lm', /text_config: hidden_act "clamp" is not supported/],
  [{ quantization_config: { quant_method: 'awq' } }, 'lm', /quantised weights are not supported/],
  [{}, 'value', /"qwen3_vl_moe" with a value head is not supported/],
] as const)('%j with a head of %s is refused', (text, head, message) => {
  expect(() => resolve(text, {}, head)).toThrow(message);
});

describe('the tensors of all experts of a layer', () => {
  const layer = 'model.language_model.layers.0.mlp.experts';
  const [inputs, outputs] = [`${layer}.gate_up_proj`, `${layer}.down_proj`];
  const read = (width: number, inner: number, shapes: Record<string, number[]>) => {
    const native = resolve(
      { hidden_size: width, moe_intermediate_size: inner },
      { vision_config: { ...raw['vision_config'], out_hidden_size: width } },
    );
    const stored = new Map(Object.entries(shapes).map(([hf, shape]) => [hf, { shape }]));
    return [inputs, outputs].map((name) => {
      const all = tensorMapping(native, stored).filter(({ hf }) => hf === name);
      expect(all.map(({ part }) => part)).toEqual([0, 1, 2, 3, 4, 5]);
      return { shape: all[0]?.shape, turned: all[0]?.transpose };
    });
  };

  test.each([
    ['neither square', 32, 12],
    ['gate_up_proj square', 32, 16],
    ['down_proj square', 32, 32],
  ])('are read as they lie there: %s', (_, width, inner) => {
    const hub = { [inputs]: [6, width, 2 * inner], [outputs]: [6, inner, width] };
    const own = { [inputs]: [6, 2 * inner, width], [outputs]: [6, width, inner] };
    for (const [shapes, turned] of [
      [hub, true],
      [own, false],
    ] as const)
      expect(read(width, inner, shapes)).toEqual([
        { shape: shapes[inputs], turned },
        { shape: shapes[outputs], turned },
      ]);
    // Without files: as published.
    expect(read(width, inner, {})).toEqual(read(width, inner, hub));
  });
});

test('adapters are on attention and dense layers of the decoder', () => {
  const config = resolve({});
  const modules = adapterTargets(config, tensorMapping(config)).map(({ module }) => module);
  const of = (layer: number, names: string[]) =>
    names.map((name) => `model.language_model.layers.${layer}.${name}`);
  const attention = ['q', 'k', 'v', 'o'].map((name) => `self_attn.${name}_proj`);
  const mlp = ['gate', 'up', 'down'].map((name) => `mlp.${name}_proj`);
  expect(modules).toEqual([...of(0, attention), ...of(1, [...attention, ...mlp]), ...of(2, attention)]);
});
