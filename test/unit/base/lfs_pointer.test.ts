import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pointerHint } from '../../../ts/base/lfs_pointer';
import { readHeader } from '../../../ts/checkpoint/safetensors';
import { openRowFile } from '../../../ts/data/row_file';
import { Tokenizer } from '../../../ts/data/tokenizer';

const directory = mkdtempSync(join(tmpdir(), 'troupe-lfs-'));
const written = (name: string, text: string): string => {
  const file = join(directory, name);
  writeFileSync(file, text);
  return file;
};
const POINTER = 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n';
const HINT = /: it is a pointer of Git LFS, in place of the file itself: fetch that with git lfs pull$/;

test.each(['a.parquet', 'a.jsonl', 'a.json'])(
  'a pointer of Git LFS in place of %s is told as one',
  async (name) => {
    await expect(openRowFile(written(name, POINTER))).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(HINT),
    });
  },
);

test('in place of weights, and of a tokenizer', () => {
  expect(() => readHeader(written('model.safetensors', POINTER))).toThrow(HINT);
  written('tokenizer.json', POINTER);
  expect(() => Tokenizer.load(directory)).toThrow(HINT);
});

test('another file, and none, is no pointer', () => {
  expect(pointerHint(written('b.jsonl', '{"version": 1}\n'))).toBe('');
  expect(pointerHint(join(directory, 'none'))).toBe('');
});
