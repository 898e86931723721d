import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { VISION_MODEL, type VisionName, visionModel } from '../../helpers/vision_model';

const raw = () =>
  JSON.parse(readFileSync(path.join(VISION_MODEL, 'config.json'), 'utf8')) as Record<
    string,
    Record<string, unknown>
  >;
const resolve = (change: (config: ReturnType<typeof raw>) => void, head: 'lm' | 'value' = 'lm') => {
  const config = raw();
  change(config);
  return resolveModelConfig(config, head, 'config.json');
};

test('what config.json says, and what transformers takes where it says nothing', () => {
  const { native } = resolve(({ text_config: text, vision_config: vision }) => {
    delete text?.['rope_parameters'];
    Object.assign(text ?? {}, {
      head_dim: 128,
      rope_theta: 5e6,
      rope_scaling: { mrope_section: [24, 20, 20], rope_type: 'default' },
    });
    delete vision?.['patch_size'];
    delete vision?.['hidden_act'];
  });
  expect(native).toMatchObject({ family: 'qwen3_vl', qkNorm: true, qkvBias: false, tiedEmbeddings: false });
  expect(native.ropeInvFreq[1]).toBeCloseTo(5e6 ** (-1 / 64), 12);
  expect(native.vision).toMatchObject({
    patchSize: 16,
    activation: 'gelu_tanh',
    positionSide: 6,
    deepstackLayers: [0, 2],
    ropeAxes: Array.from({ length: 64 }, (_, f) => (f < 60 ? f % 3 : 0)),
    imageToken: 60,
    trained: true,
  });
});

test('the end token may stand in text_config, and the head is tied by the whole or by it', () => {
  const { native, eosTokenIds } = resolve((config) => {
    delete config['tie_word_embeddings'];
    Object.assign(config['text_config'] ?? {}, { eos_token_id: 7, tie_word_embeddings: true });
  });
  expect(eosTokenIds).toEqual([7]);
  expect(native.tiedEmbeddings).toBe(true);
});

test.each([
  [
    'vision_config',
    { out_hidden_size: 31 },
    /out_hidden_size 31: expected the hidden_size 32 of text_config/,
  ],
  ['vision_config', { num_position_embeddings: 35 }, /num_position_embeddings 35: expected a square/],
  [
    'vision_config',
    { deepstack_visual_indexes: [2, 0] },
    /deepstack_visual_indexes .* ascending layers below 3/,
  ],
  ['vision_config', { num_heads: 3 }, /heads whose size divides by 4/],
  ['vision_config', { spatial_merge_size: 3 }, /spatial_merge_size 3 is not supported/],
  ['vision_config', { in_channels: 1 }, /in_channels/],
  ['text_config', { rope_parameters: { mrope_section: [4, 4, 0] } }, /mrope_section .* at most a third/],
  [
    'text_config',
    { rope_parameters: { mrope_section: [4, 2] } },
    /mrope_section .* three numbers that make up the 8/,
  ],
  ['text_config', { quantization_config: { quant_method: 'awq' } }, /quantised weights are not supported/],
])('%s with %j is refused', (part, change, message) => {
  expect(() => resolve((config) => Object.assign(config[part] ?? {}, change))).toThrow(message);
});

describe('Qwen3.5', () => {
  const of = (name: VisionName): Record<string, Record<string, unknown>> =>
    JSON.parse(readFileSync(path.join(visionModel(name).options.model, 'config.json'), 'utf8'));
  const resolveWhole = (raw: unknown) => resolveModelConfig(raw, 'lm', 'config.json', true).native;

  test.each(['qwen3_5', 'qwen3_5_moe'] as const)('%s is its language model with a tower', (name) => {
    const [whole, text] = [resolveWhole(of(name)), resolveModelConfig(of(name), 'lm', 'config.json').native];
    expect({ ...whole, vision: null }).toEqual({ ...text, family: name });
    expect(text.family).toBe(`${name}_text`);
    expect(whole.vision).toMatchObject({
      deepstackLayers: [],
      ropeAxes: [0, 1, 2, 0, 1, 2, 0, 1],
      imageToken: 60,
    });
  });

  test('what transformers takes where config.json says nothing', () => {
    const { vision, ...native } = resolveWhole({
      model_type: 'qwen3_5',
      text_config: {},
      vision_config: { out_hidden_size: 4096 },
    });
    expect(native).toMatchObject({ vocabSize: 248320, headDim: 256, tiedEmbeddings: false });
    expect(native.ropeInvFreq).toHaveLength(32);
    expect(vision).toMatchObject({ imageToken: 248056, numLayers: 27 });
    expect([0, 1, 2].map((axis) => vision?.ropeAxes.filter((own) => own === axis).length)).toEqual([
      11, 11, 10,
    ]);
  });

  test('as it is published: an empty deepstack, the older name of its experts, a head that is tied in text_config', () => {
    const raw = of('qwen3_5_moe');
    const { num_experts: experts, ...text } = raw['text_config'] as Record<string, unknown>;
    const native = resolveWhole({
      ...raw,
      tie_word_embeddings: undefined,
      text_config: { ...text, num_local_experts: experts, tie_word_embeddings: true },
      vision_config: { ...raw['vision_config'], deepstack_visual_indexes: [] },
    });
    expect(native.moe).toMatchObject({ numExperts: 4, topK: 2 });
    expect(native.tiedEmbeddings).toBe(true);
  });

  test.each([
    ['vision_config', { deepstack_visual_indexes: [0] }, /deepstack_visual_indexes/],
    ['text_config', { num_local_experts: 5 }, /text_config: num_local_experts 5 and num_experts 4/],
    [
      'text_config',
      { rope_parameters: { partial_rotary_factor: 0.5, mrope_section: [2, 3, 3] } },
      /mrope_section .* at most a third for the last two each, 3 and 2/,
    ],
    ['text_config', { linear_conv_kernel_dim: 5 }, /text_config: linear_conv_kernel_dim 5/],
  ])('%s with %j is refused', (part, change, message) => {
    const raw = of('qwen3_5_moe');
    expect(() => resolveWhole({ ...raw, [part]: { ...raw[part], ...change } })).toThrow(message);
  });
});

test('a value head is refused', () => {
  expect(() => resolve(() => undefined, 'value')).toThrow(/"qwen3_vl" with a value head is not supported/);
});

describe('the image processor of the directory', () => {
  const directory = mkdtempSync(path.join(tmpdir(), 'troupe-vision-'));
  afterAll(() => rmSync(directory, { recursive: true, force: true }));
  const processor = JSON.parse(readFileSync(path.join(VISION_MODEL, 'preprocessor_config.json'), 'utf8'));
  /** null: there is none. */
  const load = (name: string, file: string, content: unknown) => {
    const dir = path.join(directory, name);
    cpSync(VISION_MODEL, dir, { recursive: true });
    rmSync(path.join(dir, 'preprocessor_config.json'));
    if (content !== null) writeFileSync(path.join(dir, file), JSON.stringify(content));
    return loadModelDirectory(dir, 'lm').config.vision;
  };

  test('is that of transformers 5 as well', () => {
    const own = load('five', 'processor_config.json', { image_processor: processor });
    expect(own).toMatchObject({ pixelMean: [0.5, 0.4, 0.6], pixelStd: [0.5, 0.6, 0.3] });
  });

  test.each([
    ['none', null, /has no preprocessor_config.json/],
    ['other', { ...processor, patch_size: 8 }, /patches of 8 pixels .* expects 4/],
    ['frames', { ...processor, temporal_patch_size: 3 }, /patches of 3 frames .* expects 2/],
    ['nearest', { ...processor, resample: 0 }, /preprocessor_config.json: resample/],
    ['limits', { ...processor, size: {} }, /expected size.shortest_edge and size.longest_edge/],
    ['no_spread', { ...processor, image_std: [0.5, 0, 0.5] }, /image_std.1: expected a number > 0 .* got 0/],
    [
      'no_float',
      { ...processor, image_mean: [0.5, 1e300, 0.5] },
      /image_mean.1: expected a number that float32/,
    ],
    ['text', '0.5', /preprocessor_config.json: expected a JSON object/],
  ])('is refused: %s', (name, content, message) => {
    expect(() => load(name, 'preprocessor_config.json', content)).toThrow(message);
  });

  test('is refused: null', () => {
    const dir = path.join(directory, 'null');
    cpSync(VISION_MODEL, dir, { recursive: true });
    writeFileSync(path.join(dir, 'preprocessor_config.json'), 'null');
    expect(() => loadModelDirectory(dir, 'lm')).toThrow(/preprocessor_config.json: expected a JSON object/);
  });
});
