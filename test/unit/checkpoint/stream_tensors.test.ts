import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { StoredTensor } from '../../../ts/checkpoint/safetensors';
import { streamTensors } from '../../../ts/checkpoint/stream_tensors';
import type { NativeTensorFile } from '../../../ts/native/bridge';

const dir = mkdtempSync(path.join(tmpdir(), 'stream-tensors-'));
afterAll(() => rmSync(dir, { recursive: true }));
const NAMES = Array.from({ length: 40 }, (_, i) => `t${i}`);
const LENGTH = 1000;

/** Tensors of float32, one behind the other in one file, of which those of `bad` end with NaN. */
function tensors(name: string, bad: readonly string[] = []): Map<string, StoredTensor> {
  const file = path.join(dir, name);
  const values = NAMES.flatMap((own, i) =>
    Array.from({ length: LENGTH }, (_, k) => (bad.includes(own) && k === LENGTH - 1 ? Number.NaN : i + k)),
  );
  const bytes = Buffer.from(Float32Array.from(values).buffer);
  writeFileSync(file, bytes);
  const shared = { file, dtype: 'F32', shape: [LENGTH], bytes: 4 * LENGTH, fileSize: bytes.length };
  return new Map(NAMES.map((own, i) => [own, { ...shared, name: own, offset: 4 * LENGTH * i }]));
}

/** Two files of half of them each, in reverse. */
const planned = (name: string): NativeTensorFile[] =>
  [NAMES.slice(0, 20), NAMES.slice(20)].map((names, k) => ({
    path: path.join(dir, `${name}.${k}`),
    header: Buffer.from('head'),
    tensors: names.map((label, i) => ({ label, offset: 4 + 4 * LENGTH * (19 - i), dtype: 'F32' })),
  })) as unknown as NativeTensorFile[];

test('each tensor comes to its place, whichever thread copies it', async () => {
  const stored = tensors('source');
  await streamTensors(planned('out'), stored);
  const source = readFileSync(path.join(dir, 'source'));
  for (const k of [0, 1]) {
    const written = readFileSync(path.join(dir, `out.${k}`));
    expect(written.toString('latin1', 0, 4)).toBe('head');
    expect(written).toHaveLength(4 + 20 * 4 * LENGTH);
    for (let i = 0; i < 20; i++) {
      const at = 4 * LENGTH * (20 * k + i);
      const to = 4 + 4 * LENGTH * (19 - i);
      expect(written.subarray(to, to + 4 * LENGTH).equals(source.subarray(at, at + 4 * LENGTH))).toBe(true);
    }
  }
});

test('of tensors that cannot be copied the first is told, with its code', async () => {
  const stored = tensors('bad', ['t39', 't0', 't1', 't2']);
  await expect(streamTensors(planned('refused'), stored)).rejects.toMatchObject({
    name: 'TroupeError',
    code: 'NON_FINITE',
    message: expect.stringContaining(`tensor t0 in ${path.join(dir, 'bad')}: element 999 is NaN`),
  });
});

test('errors of the file system come as they are', async () => {
  const stored = tensors('gone');
  rmSync(path.join(dir, 'gone'));
  await expect(streamTensors(planned('nothing'), stored)).rejects.toMatchObject({
    code: 'ENOENT',
    message: expect.stringContaining('gone'),
  });
  await expect(streamTensors(planned('nothing'), stored)).rejects.toMatchObject({ code: 'EEXIST' });
});
