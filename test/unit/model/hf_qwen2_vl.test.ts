import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { adapterTargets } from '../../../ts/model/adapter_sites';
import { resolveModelConfig } from '../../../ts/model/hf_config';
import { visionModel } from '../../helpers/vision_model';

type Raw = Record<string, unknown>;
const MODEL = visionModel('qwen2_5_vl').options.model;
const published = (): Raw => JSON.parse(readFileSync(path.join(MODEL, 'config.json'), 'utf8')) as Raw;
const resolve = (raw: Raw, head: 'lm' | 'value' = 'lm') => resolveModelConfig(raw, head, 'config.json');

/** As transformers writes it since 4.52. */
function nested(): Raw {
  const { vision_config, model_type, image_token_id, architectures, ...text } = published();
  const { rope_scaling: _, rope_theta, ...rest } = text;
  const rope_parameters = { rope_type: 'default', type: 'mrope', mrope_section: [1, 2, 1], rope_theta };
  return {
    vision_config,
    model_type,
    image_token_id,
    architectures,
    text_config: { ...rest, rope_parameters },
  };
}

test('the decoder of Qwen 2 and a tower with windows', () => {
  const { native } = resolve(published());
  expect(native).toMatchObject({ family: 'qwen2_5_vl', qkvBias: true, qkNorm: false, tiedEmbeddings: false });
  expect(native.ropeInvFreq[1]).toBeCloseTo(1e4 ** (-1 / 4), 12);
  expect(native.vision).toMatchObject({
    norm: 'rms',
    gatedMlp: true,
    activation: 'silu',
    patchBias: false,
    positionSide: 0,
    windowSide: 2,
    wholeLayers: [1],
    deepstackLayers: [],
    ropeAxes: [0, 1, 1, 2],
    imageToken: 60,
  });
});

test('the keys of the decoder may stand in text_config', () => {
  expect(resolve(nested())).toEqual(resolve(published()));
});

test('what transformers takes where config.json says nothing', () => {
  const { native } = resolve({ model_type: 'qwen2_5_vl', vision_config: { out_hidden_size: 8192 } });
  expect(native).toMatchObject({ vocabSize: 152064, numLayers: 80, numKvHeads: 8, normEps: 1e-5 });
  expect(native.ropeInvFreq[1]).toBeCloseTo(1e6 ** (-1 / 64), 12);
  const { vision } = native;
  expect(vision).toMatchObject({
    patchSize: 14,
    windowSide: 4,
    wholeLayers: [7, 15, 23, 31],
    imageToken: 151655,
  });
  expect([0, 1, 2].map((axis) => vision?.ropeAxes.indexOf(axis))).toEqual([0, 16, 40]);
});

test.each([
  [{ tie_word_embeddings: true }, {}, true],
  [{ tie_word_embeddings: false }, { tie_word_embeddings: true }, true],
  [{}, {}, false],
])('the head is tied by %j beside the decoder and by %j in it: %s', (whole, text, tied) => {
  const { tie_word_embeddings: _, ...own } = nested()['text_config'] as Raw;
  expect(resolve({ ...nested(), ...whole, text_config: { ...own, ...text } }).native.tiedEmbeddings).toBe(
    tied,
  );
});

test('layers with sliding windows, and YaRN', () => {
  const { native } = resolve({
    ...published(),
    use_sliding_window: true,
    sliding_window: 7,
    max_window_layers: 1,
    rope_scaling: {
      type: 'yarn',
      factor: 4,
      original_max_position_embeddings: 128,
      mrope_section: [2, 1, 1],
    },
  });
  expect(native.slidingWindows).toEqual([0, 7, 7]);
  expect(native.ropeAttentionFactor).toBeCloseTo(0.1 * Math.log(4) + 1, 12);
  expect(native.vision?.ropeAxes).toEqual([0, 0, 1, 2]);
});

test.each([
  [
    [2, 0],
    [0, 2],
  ],
  [[1, 7, 15, 23, 31], [1]],
  [[7], []],
])('layers %j of a tower of three see all of an image: %j', (fullatt_block_indexes, expected) => {
  const raw = published();
  const vision_config = { ...(raw['vision_config'] as Raw), fullatt_block_indexes };
  expect(resolve({ ...raw, vision_config }).native.vision?.wholeLayers).toEqual(expected);
});

test.each([
  [{ vision_config: { window_size: 7 } }, /window_size 7: expected at least the 8 pixels that a token has/],
  [{ vision_config: { fullatt_block_indexes: [-1] } }, /fullatt_block_indexes\.0: .* got -1/],
  [{ vision_config: { out_hidden_size: 31 } }, /out_hidden_size 31: expected the hidden_size 32/],
  [{ image_token_id: 64 }, /image_token_id 64: expected one below vocab_size 64/],
  [
    { rope_scaling: { type: 'mrope', mrope_section: [2, 2, 1] } },
    /mrope_section .* three numbers that make up the 4/,
  ],
  [{ use_sliding_window: true, sliding_window: 1.5, max_window_layers: 0 }, /sliding_window: .* got 1\.5/],
  [
    { rope_scaling: { type: 'proportional', factor: 2 } },
    /"proportional" is not supported; supported: .*, mrope/,
  ],
])('%j is refused', (change, message) => {
  const raw = published();
  const vision_config = {
    ...(raw['vision_config'] as Raw),
    ...(change as { vision_config?: Raw }).vision_config,
  };
  expect(() => resolve({ ...raw, ...change, vision_config })).toThrow(message);
});

describe('the first of the family', () => {
  const first = (): Raw =>
    JSON.parse(readFileSync(path.join(visionModel('qwen2_vl').options.model, 'config.json'), 'utf8')) as Raw;
  const withTower = (change: Raw): Raw => ({
    ...first(),
    vision_config: { ...(first()['vision_config'] as Raw), ...change },
  });

  test('is the same decoder and a tower that sees whole images', () => {
    const { native } = resolve(first());
    expect(native).toMatchObject({ family: 'qwen2_vl', qkvBias: true, qkNorm: false, hiddenSize: 32 });
    expect(native.vision).toMatchObject({
      hiddenSize: 16,
      intermediateSize: 32,
      norm: 'layer',
      gatedMlp: false,
      activation: 'quick_gelu',
      patchBias: false,
      positionSide: 0,
      windowSide: 0,
      wholeLayers: [],
      deepstackLayers: [],
      ropeAxes: [0, 0, 1, 2],
    });
  });

  test('as published for 2B: keys of its first image processor are not read', () => {
    const { native } = resolve({
      ...withTower({ in_chans: 3, spatial_patch_size: 14, model_type: 'qwen2_vl' }),
      tie_word_embeddings: true,
    });
    expect(native.tiedEmbeddings).toBe(true);
    expect(native.vision).toEqual(resolve(first()).native.vision);
  });

  test.each([
    [{ hidden_size: 31 }, /vision_config: hidden_size 31: expected the hidden_size 32 of text_config/],
    [{ embed_dim: 20 }, /embed_dim 20 of 2 num_heads: expected heads whose size divides by 4/],
    [{ mlp_ratio: 2.5 }, /mlp_ratio: .* got 2\.5/],
    [{ hidden_act: 'mish' }, /hidden_act "mish" is not supported; supported: .*quick_gelu/],
  ])('%j is refused', (change, message) => {
    expect(() => resolve(withTower(change))).toThrow(message);
  });
});

test('a value head is refused', () => {
  expect(() => resolve(published(), 'value')).toThrow(/"qwen2_5_vl" with a value head is not supported/);
});

/** Of a safetensors file: the length of its header as 8 bytes, the header, the data. */
function renameTensors(file: string, rename: (hf: string) => string): void {
  const bytes = readFileSync(file);
  const end = 8 + Number(bytes.readBigUInt64LE());
  const { __metadata__: metadata, ...tensors } = JSON.parse(bytes.toString('utf8', 8, end)) as Raw;
  const renamed = Object.entries(tensors).map(([hf, tensor]) => [rename(hf), tensor]);
  const header = Buffer.from(JSON.stringify({ __metadata__: metadata, ...Object.fromEntries(renamed) }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  writeFileSync(file, Buffer.concat([length, header, bytes.subarray(end)]));
}

describe('a directory', () => {
  const directory = mkdtempSync(path.join(tmpdir(), 'troupe-qwen25-vl-'));
  afterAll(() => rmSync(directory, { recursive: true, force: true }));

  test('with the names of classes of today is the same model', () => {
    cpSync(MODEL, directory, { recursive: true });
    writeFileSync(path.join(directory, 'config.json'), JSON.stringify(nested()));
    renameTensors(path.join(directory, 'model.safetensors'), (hf) =>
      hf.replace(/^visual\./, 'model.visual.').replace(/^model\.(?!visual)/, 'model.language_model.'),
    );
    const [now, first] = [loadModelDirectory(directory, 'lm'), loadModelDirectory(MODEL, 'lm')];
    expect(now.config).toEqual(first.config);
    expect(now.mapping).toEqual(first.mapping);
    expect([...now.stored.keys()].sort()).toEqual([...first.stored.keys()].sort());
    expect(now.files.map(({ tensors: own }) => own.length)).toEqual(
      first.files.map(({ tensors: own }) => own.length),
    );
  });

  test('may have the names of a class without a head', () => {
    const bare = path.join(directory, 'bare');
    cpSync(MODEL, bare, { recursive: true });
    renameTensors(path.join(bare, 'model.safetensors'), (hf) => hf.replace(/^model\./, 'language_model.'));
    expect([...loadModelDirectory(bare, 'lm').stored.keys()].sort()).toEqual(
      [...loadModelDirectory(MODEL, 'lm').stored.keys()].sort(),
    );
  });

  test('that has a tensor under both names is refused', () => {
    const twice = path.join(directory, 'twice');
    cpSync(MODEL, twice, { recursive: true });
    // As many numbers.
    renameTensors(path.join(twice, 'model.safetensors'), (hf) =>
      hf === 'model.layers.0.post_attention_layernorm.weight' ? 'model.language_model.norm.weight' : hf,
    );
    expect(() => loadModelDirectory(twice, 'lm')).toThrow(
      /"model\.\S*norm\.weight" and "model\.\S*norm\.weight" of .* are both "model\.norm\.weight" of the model/,
    );
  });

  test('with a head of its own, which config.json ties in both places, says so in both', () => {
    const tied = path.join(directory, 'tied');
    cpSync(MODEL, tied, { recursive: true });
    const config = nested();
    const text_config = { ...(config['text_config'] as Raw), tie_word_embeddings: true };
    writeFileSync(
      path.join(tied, 'config.json'),
      JSON.stringify({ ...config, tie_word_embeddings: true, text_config }),
    );
    const { raw, ownHead, config: native } = loadModelDirectory(tied, 'lm');
    expect([ownHead, native.tiedEmbeddings]).toEqual([true, false]);
    expect(resolve(raw).native.tiedEmbeddings).toBe(false);
  });

  test('adapters have the names of modules', () => {
    const { config, mapping } = loadModelDirectory(MODEL, 'lm');
    const modules = adapterTargets(config, mapping).map(({ module }) => module);
    expect(modules).toContain('model.language_model.layers.2.mlp.up_proj');
    expect(modules).toHaveLength(3 * 7);
  });
});
