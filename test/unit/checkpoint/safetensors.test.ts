import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { readHeader, readTensors } from '../../../ts/checkpoint/safetensors';
import { planWrite } from '../../../ts/checkpoint/write_plan';
import type { TensorMapping } from '../../../ts/model/tensor_mapping';

let dir: string;
beforeEach(() => {
  dir = mkdtempSync(path.join(tmpdir(), 'troupe-safetensors-'));
});
afterEach(() => rmSync(dir, { recursive: true }));

/** A file of this header (JSON text or object) and this many data bytes. */
function write(name: string, header: unknown, dataBytes: number): string {
  const json = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header));
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(json.length));
  const file = path.join(dir, name);
  writeFileSync(file, Buffer.concat([prefix, json, Buffer.alloc(dataBytes)]));
  return file;
}

const f32 = (from: number, count: number): object => ({
  dtype: 'F32',
  shape: [count],
  data_offsets: [from, from + 4 * count],
});

test('a good file', () => {
  const file = write('model.safetensors', { __metadata__: { format: 'pt' }, b: f32(8, 1), a: f32(0, 2) }, 12);
  const tensors = readHeader(file);
  expect(tensors.map((t) => [t.name, t.shape, t.bytes])).toEqual([
    ['a', [2], 8],
    ['b', [1], 4],
  ]);
  expect(tensors[1]!.offset).toBe(tensors[0]!.offset + 8);
  expect(tensors[0]!.fileSize).toBe(tensors[1]!.offset + 4);
  expect([...readTensors(dir).keys()]).toEqual(['a', 'b']);
});

describe('malformed files', () => {
  test.each<[string, unknown, number, RegExp]>([
    ['truncated data', { a: f32(0, 2) }, 7, /tensor 'a' ends at byte .*the file has .*truncated/],
    ['bytes at the end', { a: f32(0, 2) }, 9, /1 bytes after the last tensor/],
    ['hole', { a: f32(0, 1), b: f32(8, 1) }, 12, /4 bytes before tensor 'b' belong to no tensor/],
    ['overlap', { a: f32(0, 2), b: f32(4, 2) }, 12, /tensor 'b' overlaps 'a'/],
    [
      'backwards',
      { a: { dtype: 'F32', shape: [0], data_offsets: [4, 0] } },
      4,
      /'a': data_offsets \[4, 0\] run backwards/,
    ],
    [
      'shape',
      { a: { dtype: 'F32', shape: [3], data_offsets: [0, 8] } },
      8,
      /shape \[3\] of F32 takes 12 bytes but data_offsets span 8/,
    ],
    ['negative shape', { a: { dtype: 'F32', shape: [-1], data_offsets: [0, 4] } }, 4, /tensor 'a': shape.0/],
    ['no offsets', { a: { dtype: 'F32', shape: [1] } }, 4, /tensor 'a': data_offsets/],
    ['bad JSON', '{"a": ', 0, /the header is not valid JSON/],
    ['array', '[1]', 0, /the header is not a JSON object/],
    [
      'duplicate',
      '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
      4,
      /the key 'a' appears twice/,
    ],
  ])('%s', (_name, header, bytes, message) => {
    const file = write('model.safetensors', header, bytes);
    expect(() => readHeader(file)).toThrow(message);
    expect(() => readHeader(file)).toThrow(expect.objectContaining({ code: 'INVALID_MODEL' }));
    expect(() => readHeader(file)).toThrow(file);
  });

  test('header longer than the file, no header, no file', () => {
    const file = path.join(dir, 'x.safetensors');
    writeFileSync(file, Buffer.from([255, 255, 255, 255, 255, 255, 255, 127, 1, 2]));
    expect(() => readHeader(file)).toThrow(/claims 9223372036854775807 bytes but the file has 10/);
    writeFileSync(file, 'abc');
    expect(() => readHeader(file)).toThrow(/3 bytes, too short/);
    expect(() => readHeader(path.join(dir, 'none'))).toThrow(expect.objectContaining({ code: 'IO' }));
  });
});

describe('sharded checkpoints', () => {
  const index = (weight_map: unknown): void =>
    writeFileSync(path.join(dir, 'model.safetensors.index.json'), JSON.stringify({ weight_map }));

  beforeEach(() => {
    write('one.safetensors', { a: f32(0, 1) }, 4);
    write('two.safetensors', { b: f32(0, 1) }, 4);
  });

  test('good', () => {
    index({ a: 'one.safetensors', b: 'two.safetensors' });
    expect([...readTensors(dir).values()].map((t) => path.basename(t.file))).toEqual([
      'one.safetensors',
      'two.safetensors',
    ]);
  });

  test.each<[string, unknown, RegExp]>([
    ['missing file', { a: 'three.safetensors' }, /names three.safetensors, which is not in/],
    [
      'missing tensor',
      { a: 'one.safetensors', c: 'two.safetensors' },
      /places tensor 'c' in two.safetensors, which does not hold it/,
    ],
    [
      'unlisted tensor',
      { a: 'one.safetensors', b: 'two.safetensors', toString: 'one.safetensors' },
      /'toString'/,
    ],
    ['escape', { a: '../one.safetensors' }, /'..\/one.safetensors' leads out/],
    ['absolute', { a: '/etc/passwd' }, /leads out/],
    ['no map', undefined, /expected weight_map to map/],
    ['not names', { a: 1 }, /expected weight_map to map/],
  ])('%s', (_name, weight_map, message) => {
    index(weight_map);
    expect(() => readTensors(dir)).toThrow(message);
  });

  test('a tensor in two files', () => {
    write('two.safetensors', { a: f32(0, 1), b: f32(4, 1) }, 8);
    index({ a: 'one.safetensors', b: 'two.safetensors' });
    expect(() => readTensors(dir)).toThrow(/tensor 'a' is both in one.safetensors and in two.safetensors/);
  });

  test('neither file nor index', () => {
    mkdirSync(path.join(dir, 'empty'));
    expect(() => readTensors(path.join(dir, 'empty'))).toThrow(/found neither$/);
    writeFileSync(path.join(dir, 'empty', 'pytorch_model.bin'), '');
    expect(() => readTensors(path.join(dir, 'empty'))).toThrow(/pickle/);
  });
});

describe('planWrite', () => {
  const entry = (hf: string, shape: number[]): TensorMapping => ({
    hf,
    shape,
    param: hf,
    row: 0,
    rows: shape[0]!,
    transpose: false,
  });
  const mapping = [entry('a', [2, 3]), entry('b', [4]), entry('c', [1, 1])];

  test('what is planned reads back, aligned', () => {
    const { files, index } = planWrite(dir, 'model', mapping, (hf) => (hf === 'a' ? 'BF16' : 'F32'));
    expect(index).toBeNull();
    const [file] = files;
    writeFileSync(file!.path, Buffer.concat([file!.header, Buffer.alloc(file!.size - file!.header.length)]));
    const read = readTensors(dir);
    expect([...read.values()].map((t) => [t.name, t.dtype, t.shape, t.offset])).toEqual(
      file!.tensors.map((t) => [t.label, t.dtype, mapping.find((m) => m.hf === t.label)!.shape, t.offset]),
    );
    for (const t of file!.tensors) expect(t.offset % (t.dtype === 'F32' ? 4 : 2)).toBe(0);
    expect(file!.header.length % 8).toBe(0);
  });

  test('what is kept has files of its own, under the same limit', () => {
    const kept = [
      { hf: 'd', shape: [2, 2] },
      { hf: 'e', shape: [3] },
    ];
    const plan = planWrite(dir, 'model', mapping, (hf) => (hf === 'd' ? 'BF16' : 'F32'), 44, kept);
    const names = (files: typeof plan.files) => files.map((f) => path.basename(f.path));
    expect(names(plan.files)).toEqual(['model-00001-of-00002.safetensors']);
    expect(names(plan.kept)).toEqual(['model-00002-of-00002.safetensors']);
    expect(plan.index?.metadata.total_size).toBe(44 + 8 + 12);
    expect(plan.index?.weight_map['a']).toBe('model-00001-of-00002.safetensors');
    expect(plan.index?.weight_map['d']).toBe('model-00002-of-00002.safetensors');
    expect(plan.kept[0]?.tensors.map(({ label, dtype }) => [label, dtype])).toEqual([
      ['e', 'F32'],
      ['d', 'BF16'],
    ]);
    expect(planWrite(dir, 'model', mapping, () => 'F32', 44, kept).kept).toHaveLength(1);
    expect(planWrite(dir, 'model', mapping, () => 'F32', 27, kept).kept).toHaveLength(2);
  });

  test('above the limit it shards', () => {
    const { files, index } = planWrite(dir, 'exp_avg', mapping, () => 'F32', 24);
    expect(files.map((f) => path.basename(f.path))).toEqual([
      'exp_avg-00001-of-00002.safetensors',
      'exp_avg-00002-of-00002.safetensors',
    ]);
    expect(index).toEqual({
      metadata: { total_size: 44 },
      weight_map: {
        a: 'exp_avg-00001-of-00002.safetensors',
        b: 'exp_avg-00002-of-00002.safetensors',
        c: 'exp_avg-00002-of-00002.safetensors',
      },
    });
    for (const f of files)
      writeFileSync(f.path, Buffer.concat([f.header, Buffer.alloc(f.size - f.header.length)]));
    writeFileSync(path.join(dir, 'exp_avg.safetensors.index.json'), JSON.stringify(index));
    expect([...readTensors(dir, 'exp_avg').keys()].sort()).toEqual(['a', 'b', 'c']);
  });
});
