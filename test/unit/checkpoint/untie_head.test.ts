import fs, { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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

// transformers 5 refuses an integer where a field of a class is a float.
test('numbers of config.json stay as they were written', async () => {
  const directory = await writeModel(join(root, 'floats'));
  const file = join(directory, 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8'));
  const floats = '"attn_logit_softcapping": 50.0, "time_step_limit": [0.0, Infinity]';
  writeFileSync(file, `{${floats}, ${JSON.stringify(config).slice(1)}`);
  untieHead(directory);
  expect(readFileSync(file, 'utf8').replace(/\s+/g, ' ')).toContain(
    floats.replace('[', '[ ').replace(']', ' ]'),
  );
});

test('a disk that takes less than it is given gets the rest', async () => {
  const directory = await writeModel(join(root, 'short'));
  const write = fs.writeSync;
  const short = jest
    .spyOn(fs, 'writeSync')
    .mockImplementation(((fd: number, bytes: Uint8Array, from: number, length: number, at: number) =>
      write(fd, bytes, from, Math.min(length, 100), at)) as typeof fs.writeSync);
  untieHead(directory);
  short.mockRestore();
  expect(bytesOf(directory, 'lm_head.weight')).toEqual(bytesOf(directory, 'model.embed_tokens.weight'));
});
