import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { NativeEngine, NativeTensorFile, NativeWeightChunk } from '../../ts/native/bridge';
import { loadBinding } from '../../ts/native/loader';
import { tinyEngine } from '../helpers/tiny_model';

const binding = loadBinding();
let engine: NativeEngine;
let dir: string;
beforeEach(async () => {
  engine = await binding.createEngine(tinyEngine());
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-weights-'));
});
afterEach(async () => {
  await binding.close(engine);
  rmSync(dir, { recursive: true });
});

/** Rows of the embeddings, [16, 8]. */
const chunk = (changes: Partial<NativeWeightChunk> = {}): NativeWeightChunk => ({
  param: 'embed.weight',
  row: 0,
  rows: 16,
  transpose: false,
  label: 'model.embed_tokens.weight',
  first: 0,
  count: 16,
  ...changes,
});
const bucket = (...chunks: NativeWeightChunk[]) => ({ dtype: 'float32' as const, chunks });
const bytes = (...values: number[]) => new Uint8Array(Float32Array.from(values).buffer);
const embeddings = () => binding.getTensor(engine, 'param', 'embed.weight');

test('columns of a parameter, as a transposed tensor has them in its rows', async () => {
  const before = await embeddings();
  const columns = chunk({ row: 2, rows: 3, transpose: true, first: 6, count: 2 });
  await binding.importWeights(engine, bucket(columns), bytes(1, 2, 3, 4, 5, 6));
  const expected = before.slice();
  for (const [i, column] of [6, 7].entries())
    for (const [j, row] of [2, 3, 4].entries()) expected[8 * row + column] = 3 * i + j + 1;
  expect(await embeddings()).toEqual(expected);
  const { bytes: exported } = await binding.exportWeights(engine, 'param', bucket(columns), null, false);
  expect(exported).toEqual(bytes(1, 2, 3, 4, 5, 6));
});

test('what is outside a tensor, or of the wrong length, is refused before anything changes', async () => {
  const before = await embeddings();
  const row = bytes(...new Array<number>(8).fill(1));
  const first = chunk({ count: 1 });
  for (const [bad, data, message] of [
    [
      chunk({ first: 15, count: 2 }),
      bytes(...new Array<number>(16).fill(1)),
      /rows within its 16, got 15 to 17/,
    ],
    [chunk({ row: 10, rows: 7, count: 1 }), row, /rows 10 to 17 are outside embed\.weight, which has 16/],
    [chunk({ param: 'norm.weight', rows: 8, transpose: true, count: 1 }), row, /is no matrix/],
    [chunk({ param: 'nothing', count: 1 }), row, /has no parameter 'nothing'/],
    [chunk({ first: 1, count: 1 }), row.slice(4), /expected a bucket of 64 bytes, got 60/],
  ] as const) {
    const both = new Uint8Array([...row, ...data]);
    await expect(binding.importWeights(engine, bucket(first, bad), both)).rejects.toThrow(message);
  }
  expect(await embeddings()).toEqual(before);
});

test('float16 that would overflow is an error that names the tensor', async () => {
  await binding.importWeights(
    engine,
    bucket(chunk({ first: 3, count: 1 })),
    bytes(0, 1, 2, -70000, 4, 5, 6, 7),
  );
  const file = (dtype: 'F16' | 'BF16'): NativeTensorFile => ({
    path: path.join(dir, dtype),
    header: new Uint8Array(8),
    size: 8 + 16 * 8 * 2,
    tensors: [
      {
        param: 'embed.weight',
        row: 0,
        rows: 16,
        transpose: false,
        label: 'embed_tokens',
        offset: 8,
        dtype,
        scales: null,
      },
    ],
  });
  await expect(binding.exportTensors(engine, 'param', [file('F16')])).rejects.toMatchObject({
    code: 'NON_FINITE',
    message: expect.stringMatching(
      /tensor embed_tokens has values up to 70000, which float16 \(at most 65504\) cannot hold: save it as bfloat16/,
    ),
  });
  expect(existsSync(path.join(dir, 'F16'))).toBe(false);
  await binding.exportTensors(engine, 'param', [file('BF16')]);
});

test('merged parameters are exported only', async () => {
  const before = await embeddings();
  await expect(binding.importTensors(engine, 'merged', [])).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringContaining('expected an import of param, grad, expAvg or expAvgSq, got merged'),
  });
  expect(await embeddings()).toEqual(before);
});
