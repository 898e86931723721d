import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readTensors } from '../../../ts/checkpoint/safetensors';
import { untieHead } from '../../../ts/checkpoint/untie_head';
import { modelTensors, writeModel, writeSafetensors } from '../../helpers/e2e_workspace';

const root = mkdtempSync(join(tmpdir(), 'troupe-untie-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));

const bytesOf = (directory: string, name: string): Buffer => {
  const { file, offset, bytes } = readTensors(directory).get(name) ?? { file: '', offset: 0, bytes: 0 };
  return readFileSync(file).subarray(offset, offset + bytes);
};

test('the head is a copy of the embedding, once', async () => {
  const directory = await writeModel(join(root, 'one'));
  untieHead(directory);
  expect(bytesOf(directory, 'lm_head.weight')).toEqual(bytesOf(directory, 'model.embed_tokens.weight'));
  // Readers map the file into memory, and look at the values where they lie: safetensors aligns them to 8 bytes.
  expect((readTensors(directory).get('lm_head.weight')?.offset as number) % 8).toBe(0);
  expect(JSON.parse(readFileSync(join(directory, 'config.json'), 'utf8'))).toMatchObject({
    tie_word_embeddings: false,
    vocab_size: 15,
  });
  untieHead(directory);
  expect(readTensors(directory).size).toBe(modelTensors().length + 1);
});

test('an index knows the new file', async () => {
  const directory = await writeModel(join(root, 'two'));
  const [first, ...others] = modelTensors() as [ReturnType<typeof modelTensors>[number]];
  rmSync(join(directory, 'model.safetensors'));
  writeSafetensors(join(directory, 'a.safetensors'), [first]);
  writeSafetensors(join(directory, 'b.safetensors'), others);
  const map = Object.fromEntries([
    [first.name, 'a.safetensors'],
    ...others.map(({ name }) => [name, 'b.safetensors']),
  ]);
  writeFileSync(
    join(directory, 'model.safetensors.index.json'),
    JSON.stringify({ metadata: {}, weight_map: map }),
  );
  untieHead(directory);
  expect(readTensors(directory).get('lm_head.weight')?.shape).toEqual([15, 32]);
  expect(bytesOf(directory, 'lm_head.weight')).toEqual(bytesOf(directory, 'model.embed_tokens.weight'));
});
