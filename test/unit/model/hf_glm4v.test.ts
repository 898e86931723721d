import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { readImageProcessor } from '../../../ts/model/image_processor';
import { isPredictionLayer } from '../../../ts/model/prediction_layers';
import { architectureName, tensorMapping } from '../../../ts/model/tensor_names';
import { visionModel } from '../../helpers/vision_model';
import { temporaryDirectory } from '../data/fake_tokenizer';

type Raw = Record<string, unknown>;
const configOf = (name: 'glm4v' | 'glm4v_moe'): Raw =>
  JSON.parse(readFileSync(path.join(visionModel(name).options.model, 'config.json'), 'utf8')) as Raw;
const resolve = (raw: Raw, head: 'lm' | 'value' = 'lm') => resolveModelConfig(raw, head, 'config.json');
const native = (raw: Raw) => resolve(raw).native;

/** The fixture of a family with other keys, those of its parts in them. */
function changed(name: 'glm4v' | 'glm4v_moe', text: Raw, vision: Raw = {}, whole: Raw = {}): Raw {
  const raw = configOf(name);
  return {
    ...raw,
    ...whole,
    text_config: { ...(raw['text_config'] as Raw), ...text },
    vision_config: { ...(raw['vision_config'] as Raw), ...vision },
  };
}

const TOWER = {
  numLayers: 24,
  hiddenSize: 1536,
  numHeads: 12,
  intermediateSize: 4096,
  gatedMlp: true,
  activation: 'silu',
  norm: 'rms',
  normEps: 1e-5,
  patchSize: 14,
  patchBias: true,
  patchNorm: true,
  qkvBias: false,
  layerBias: false,
  positionSide: 24,
  cubicPositions: true,
  gatedMergerSize: 13696,
  windowSide: 0,
  deepstackLayers: [],
};
const ROPES = { rope_type: 'default', rope_theta: 1e4, partial_rotary_factor: 0.5 };

// Counts of parameters and tensors: classes of transformers 5.24 on the device meta, with what their configurations say by themselves but for what is given
// here; the experts of a layer, two tensors there, are published apart.
test.each([
  ['glm4v', { rope_parameters: ROPES }, 10_292_777_472, 'Glm4vForConditionalGeneration'],
  ['glm4v_moe', { head_dim: 128 }, 107_743_695_360, 'Glm4vMoeForConditionalGeneration'],
])(
  '%s of a configuration that says nothing else has the tensors of transformers',
  (model_type, text_config, parameters, name) => {
    const config = native({ model_type, text_config, vision_config: {} });
    expect(architectureName(config)).toBe(name);
    expect(config.vision).toMatchObject(TOWER);
    const trained = tensorMapping(config).filter(({ hf }) => !hf.endsWith('e_score_correction_bias'));
    const shapes = new Map(trained.map(({ hf, shape }) => [hf, shape]));
    const sizes = [...shapes.values()].map((shape) => shape.reduce((all, extent) => all * extent, 1));
    expect(sizes.reduce((a, b) => a + b, 0)).toBe(parameters);
  },
);

test('the decoder of GLM-4: pairs turn, in three sections, between norms before and behind', () => {
  const config = native(configOf('glm4v'));
  expect(config).toMatchObject({
    family: 'glm4v',
    ropePairs: true,
    postNorms: true,
    qkvBias: true,
    outputBias: false,
    headDim: 16,
    tiedEmbeddings: false,
    vision: { ropeAxes: [0, 1, 1, 2], imageToken: 60, positionSide: 6, qkvBias: false },
  });
  expect(config.ropeInvFreq).toHaveLength(4);
});

test('the decoder of GLM-4.5: halves turn, without norms of queries and keys', () => {
  const config = native(changed('glm4v_moe', { use_qk_norm: true }));
  expect(config).toMatchObject({
    family: 'glm4v_moe',
    ropePairs: false,
    postNorms: false,
    qkvBias: true,
    qkNorm: false,
    moe: { numExperts: 6, topK: 2, groups: 2, topGroups: 1, routedScale: 1.5, correctionBias: true },
    moeLayers: [false, true, true],
    vision: { ropeAxes: [0, 1, 1, 2], qkvBias: true, layerBias: false },
  });
  const renamed = changed('glm4v_moe', { n_routed_experts: undefined, num_local_experts: 8 });
  expect(native(renamed).moe?.numExperts).toBe(8);
  // Layers that predict further tokens, where files have some, are kept.
  expect(isPredictionLayer(config, 'model.language_model.layers.3.eh_proj.weight')).toBe(true);
  expect(isPredictionLayer(config, 'model.language_model.layers.2.mlp.gate.weight')).toBe(false);
});

test('sections one behind another where config.json says none, of heads of 128 numbers', () => {
  const { vision } = native({ model_type: 'glm4v_moe', text_config: { head_dim: 128 }, vision_config: {} });
  expect([0, 1, 2].map((axis) => vision?.ropeAxes.indexOf(axis))).toEqual([0, 8, 20]);
  expect(vision?.ropeAxes).toHaveLength(32);
  expect(vision?.imageToken).toBe(151363);
});

test('the older spelling of RoPE', () => {
  const { rope_parameters: _, ...text } = configOf('glm4v')['text_config'] as Raw;
  const older = {
    ...text,
    rope_theta: 10000.0,
    partial_rotary_factor: 0.5,
    rope_scaling: { type: 'default', mrope_section: [1, 2, 1] },
  };
  expect(native({ ...configOf('glm4v'), text_config: older })).toEqual(native(configOf('glm4v')));
});

test.each([
  [{ tie_word_embeddings: true }, {}, true],
  [{}, { tie_word_embeddings: true }, true],
  [{ tie_word_embeddings: false }, {}, false],
])('the head is tied by %j of the whole and by %j of the decoder: %s', (whole, text, tied) => {
  expect(native(changed('glm4v', text, {}, whole)).tiedEmbeddings).toBe(tied);
  expect(native(changed('glm4v_moe', text, {}, whole)).tiedEmbeddings).toBe(tied);
});

test('tokens that end a response may stand in the decoder', () => {
  expect(resolve(changed('glm4v', { eos_token_id: [5, 7] })).eosTokenIds).toEqual([5, 7]);
});

test.each<[Raw, Raw, RegExp]>([
  [
    { head_dim: 8 },
    {},
    /text_config: head_dim 8: expected hidden_size 64 divided by the 4 num_attention_heads/,
  ],
  [{}, { out_hidden_size: 32 }, /out_hidden_size 32: expected the hidden_size 64 of text_config/],
  [{}, { image_size: 3 }, /image_size 3 of patches of 4 pixels: expected from 1 to/],
  [{}, { image_size: 2 ** 20 }, /image_size 1048576 of patches of 4 pixels: expected from 1 to/],
  [{}, { image_size: [336, 336] }, /image_size: .*expected number/],
  [{}, { num_heads: 3 }, /hidden_size 16 of 3 num_heads/],
  [
    { rope_parameters: { ...ROPES, partial_rotary_factor: undefined } },
    {},
    /mrope_section \[8, *12, *12\]: expected three numbers that make up the 8 rotary/,
  ],
])('%j and a tower with %j are refused', (text, vision, message) => {
  expect(() => native(changed('glm4v', text, vision))).toThrow(message);
});

test('a value head is refused', () => {
  expect(() => resolve(configOf('glm4v'), 'value')).toThrow(/"glm4v" with a value head is not supported/);
});

describe('its image processor', () => {
  const directory = temporaryDirectory();
  const file = path.join(visionModel('glm4v').options.model, 'preprocessor_config.json');
  const read = (change: Raw) => {
    const raw = { ...(JSON.parse(readFileSync(file, 'utf8')) as Raw), ...change };
    writeFileSync(path.join(directory, 'preprocessor_config.json'), JSON.stringify(raw));
    return readImageProcessor(directory);
  };

  test.each(['Glm4vImageProcessor', 'Glm46VImageProcessorFast'])(
    '%s has limits of all frames of a patch',
    (type) => {
      const ours = { image_processor_type: type };
      expect(read(ours)).toMatchObject({ minPixels: 512, maxPixels: 4096, enlarges: true });
      expect(read({ ...ours, temporal_patch_size: null })).toMatchObject({ minPixels: 512, maxPixels: 4096 });
      expect(read({ ...ours, temporal_patch_size: 1 })).toMatchObject({ minPixels: 1024, maxPixels: 8192 });
      // Keys of another processor.
      expect(read({ ...ours, min_pixels: 7, max_pixels: 9 })).toMatchObject({
        minPixels: 512,
        maxPixels: 4096,
      });
    },
  );

  test('those of other models have limits of an image', () => {
    const other = read({ image_processor_type: 'Qwen2VLImageProcessor' });
    expect(other).toMatchObject({ minPixels: 1024, maxPixels: 8192, enlarges: false });
  });
});
