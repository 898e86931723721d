import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadModelDirectory, readEosTokenIds } from '../../../ts/checkpoint/model_dir';
import { writeModelFiles } from '../../../ts/checkpoint/save_files';
import { textPart } from '../../../ts/model/text_part';
import { CONFORMANCE } from '../../helpers/conformance';
import { writeSafetensors } from '../../helpers/e2e_workspace';
import { readSafetensors } from '../../helpers/safetensors';

// Gemma 3 with images: the language model in it is a gemma3_text model, in its config.json and in its tensors.
const TEXT = join(CONFORMANCE, 'models', 'gemma3_text', 'actor');
const text = JSON.parse(readFileSync(join(TEXT, 'config.json'), 'utf8')) as Record<string, unknown>;
const plan = { files: [], index: null } as unknown as Parameters<typeof writeModelFiles>[2];

/** As the hub has it (`language_model.model.layers...`), or transformers 5 names it inside (`model.language_model.layers...`). */
function withImages(rename: (hf: string) => string, config: object = {}, head?: Float32Array): string {
  const dir = mkdtempSync(join(tmpdir(), 'troupe-text-part-'));
  mkdirSync(dir, { recursive: true });
  const { eos_token_id, torch_dtype, tie_word_embeddings, architectures, ...own } = text;
  const whole = {
    architectures: ['Gemma3ForConditionalGeneration'],
    model_type: 'gemma3',
    eos_token_id: [1, 106],
    torch_dtype,
    text_config: own,
    vision_config: { hidden_size: 16 },
    image_token_index: 127,
    ...config,
  };
  writeFileSync(join(dir, 'config.json'), JSON.stringify(whole));
  const tensors = Object.entries(readSafetensors(join(TEXT, 'model.safetensors')));
  const floats = (data: unknown): Float32Array => data as Float32Array;
  const shape = [128, 24];
  writeSafetensors(join(dir, 'model.safetensors'), [
    { name: 'vision_tower.post_layernorm.bias', shape: [2], data: new Float32Array(2) },
    { name: 'multi_modal_projector.mm_soft_emb_norm.weight', shape: [2], data: new Float32Array(2) },
    ...tensors.map(([name, t]) => ({ name: rename(name), shape: t.shape, data: floats(t.data) })),
    ...(head === undefined ? [] : [{ name: rename('lm_head.weight'), shape, data: head }]),
  ]);
  return dir;
}

const ofTheHub = (hf: string): string => `language_model.${hf}`;
const ofTransformers = (hf: string): string => hf.replace(/^model\./, 'model.language_model.');

test.each([
  ['the hub', ofTheHub],
  ['transformers 5', ofTransformers],
])('under the names of %s', (_name, rename) => {
  const dir = withImages(rename);
  const [found, expected] = [loadModelDirectory(dir, 'lm'), loadModelDirectory(TEXT, 'lm')];
  expect(found.config).toEqual(expected.config);
  expect([...found.stored.keys()]).toEqual([...expected.stored.keys()]);
  expect(found.files.flatMap((f) => f.tensors).map(({ label }) => label)).toEqual(
    [...expected.stored.keys()].map(rename),
  );
  expect(found.eosTokenIds).toEqual([1, 106]);
  expect(readEosTokenIds(dir)).toEqual([1, 106]);
  expect(loadModelDirectory(dir, 'lm', { maxPositionEmbeddings: 64 }).config.maxPositions).toBe(64);
  expect(loadModelDirectory(dir, 'value').freshHead).toBe(true);
});

test('is saved as the text model that it then is', () => {
  const out = mkdtempSync(join(tmpdir(), 'troupe-text-part-'));
  writeModelFiles(loadModelDirectory(withImages(ofTheHub), 'lm'), out, plan, null);
  const saved = JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'));
  const { tie_word_embeddings, ...rest } = text;
  expect(saved).toEqual({ ...rest, eos_token_id: [1, 106], architectures: ['Gemma3ForCausalLM'] });
});

test('what is said of the whole counts: a head of its own, quantised weights', () => {
  expect(() => loadModelDirectory(withImages(ofTheHub, { tie_word_embeddings: false }), 'lm')).toThrow(
    /1 missing:\n {4}lm_head.weight/,
  );
  expect(() => loadModelDirectory(withImages(ofTheHub, { quantization_config: { bits: 4 } }), 'lm')).toThrow(
    /quantization_config: quantised/,
  );
});

test.each([
  ['the hub', ofTheHub],
  ['transformers 5', ofTransformers],
])('a head in the files, under the name of %s', (_name, rename) => {
  const other = new Float32Array(128 * 24).fill(0.5);
  const embedding = readSafetensors(join(TEXT, 'model.safetensors'))['model.embed_tokens.weight'];
  const tied = loadModelDirectory(withImages(rename, {}, embedding?.data as Float32Array), 'lm');
  expect([tied.config.tiedEmbeddings, tied.ownHead]).toEqual([true, false]);
  const own = withImages(rename, { tie_word_embeddings: false }, other);
  expect(loadModelDirectory(own, 'lm').stored.get('lm_head.weight')?.name).toBe(rename('lm_head.weight'));
  expect(loadModelDirectory(own, 'value').freshHead).toBe(true);
});

describe('Mistral 3 with images', () => {
  const MINISTRAL = join(CONFORMANCE, 'models', 'ministral3', 'actor');
  const { architectures, ...ministral } = JSON.parse(readFileSync(join(MINISTRAL, 'config.json'), 'utf8'));
  const whole = (text_config: object, more: object = {}): Record<string, unknown> =>
    textPart({ model_type: 'mistral3', vision_config: {}, image_token_index: 10, text_config, ...more });

  test('the language model is what text_config says, and a mistral where it does not', () => {
    expect(whole(ministral, { tie_word_embeddings: false })).toEqual({
      ...ministral,
      tie_word_embeddings: false,
    });
    const { model_type: _, ...unsaid } = ministral;
    expect(whole(unsaid)).toEqual({ ...unsaid, model_type: 'mistral', tie_word_embeddings: true });
  });

  test('is read under the names of the hub, and saved as the text model that it then is', () => {
    const [dir, out] = [0, 1].map(() => mkdtempSync(join(tmpdir(), 'troupe-text-part-'))) as [string, string];
    const config = {
      architectures: ['Mistral3ForConditionalGeneration'],
      model_type: 'mistral3',
      text_config: ministral,
    };
    writeFileSync(join(dir, 'config.json'), JSON.stringify(config));
    const tensors = Object.entries(readSafetensors(join(MINISTRAL, 'model.safetensors')));
    writeSafetensors(join(dir, 'model.safetensors'), [
      { name: 'vision_tower.ln_pre.weight', shape: [2], data: new Float32Array(2) },
      ...tensors.map(([name, { shape, data }]) => ({
        name: ofTheHub(name),
        shape,
        data: data as Float32Array,
      })),
    ]);
    const [found, expected] = [loadModelDirectory(dir, 'lm'), loadModelDirectory(MINISTRAL, 'lm')];
    expect(found.config).toEqual(expected.config); // with a head of its own
    expect([...found.stored.keys()].sort()).toEqual([...expected.stored.keys()].sort());
    writeModelFiles(found, out, plan, null);
    const saved = JSON.parse(readFileSync(join(out, 'config.json'), 'utf8'));
    expect(saved).toMatchObject({
      model_type: 'ministral3',
      architectures: ['Ministral3ForCausalLM'],
      tie_word_embeddings: false,
    });
    expect(saved.rope_parameters).toEqual(ministral.rope_parameters);
  });
});
