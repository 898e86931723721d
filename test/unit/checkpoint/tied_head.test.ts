import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadModelDirectory } from '../../../ts/checkpoint/model_dir';
import { modelTensors, type NamedTensor, writeModel } from '../../helpers/e2e_workspace';

// config.json says that the head is the embedding: what the files say counts, as in transformers 5.

const root = mkdtempSync(join(tmpdir(), 'troupe-tied-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const [embedding, ...others] = modelTensors() as [NamedTensor, ...NamedTensor[]];
const headOf = (change: (data: Float32Array) => void): NamedTensor => {
  const data = embedding.data.slice();
  change(data);
  return { ...embedding, name: 'lm_head.weight', data };
};

let count = 0;
const load = async (tensors: NamedTensor[], head: 'lm' | 'value' = 'lm') =>
  loadModelDirectory(await writeModel(join(root, String(count++)), { tensors }), head);
const labels = ({ files }: Awaited<ReturnType<typeof load>>) =>
  files.flatMap((file) => file.tensors.map(({ param, label }) => `${param} < ${label}`));

test('a head that is the embedding is left out', async () => {
  const model = await load([embedding, ...others, headOf(() => undefined)]);
  expect(model.config.tiedEmbeddings).toBe(true);
  expect(model.mapping.some(({ hf }) => hf === 'lm_head.weight')).toBe(false);
  expect([model.raw['tie_word_embeddings'], model.ownHead]).toEqual([true, false]);
});

test.each([
  ['first', 0],
  ['last', embedding.data.length - 1],
])('a head whose %s number differs is one of its own, and saved as one', async (_name, at) => {
  const head = headOf((data) => {
    data[at] = 2;
  });
  const model = await load([head, embedding, ...others]);
  expect(model.config.tiedEmbeddings).toBe(false);
  expect(labels(model)).toContain('head.weight < lm_head.weight');
  expect([model.raw['tie_word_embeddings'], model.ownHead]).toEqual([false, true]);
  // A value head has nothing to do with it.
  const critic = await load([head, embedding, ...others], 'value');
  expect(labels(critic).some((label) => label.endsWith('lm_head.weight'))).toBe(false);
});

test('a head alone is the embedding as well', async () => {
  const model = await load([...others, headOf(() => undefined)]);
  expect(model.config.tiedEmbeddings).toBe(true);
  expect(labels(model)).toContain('embed.weight < lm_head.weight');
  await expect(load(others)).rejects.toThrow(/1 missing:\n {4}model.embed_tokens.weight/);
});
