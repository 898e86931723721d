import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { crc32Combine } from '../../../ts/base/crc32_combine';
import { checkFiles, describeFiles, type Manifest } from '../../../ts/run/manifest';
import { writeSafetensors } from '../../helpers/e2e_workspace';

const hex = (value: number): string => value.toString(16).padStart(8, '0');

const ramp = (size: number): Float32Array => Float32Array.from({ length: size }, (_, i) => i);

let directory: string;
let manifest: Manifest;
let file: string;
let bytes: Buffer;
let dataStart: number;
/** More than what is read at a time. */
const LONG = (5 << 20) / 4;
const long = new Float32Array(LONG).fill(0.5);

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'manifest-'));
  file = join(directory, 'model.safetensors');
  const tensors = [
    { name: 'a.weight', shape: [3], data: ramp(3) },
    { name: 'empty', shape: [0], data: ramp(0) },
    { name: 'b.weight', shape: [LONG], data: long },
    { name: 'norm', shape: [2], data: ramp(2) },
  ];
  writeSafetensors(file, tensors);
  writeFileSync(join(directory, 'config.json'), '{}');
  bytes = readFileSync(file);
  dataStart = 8 + Number(bytes.readBigUInt64LE(0));
  manifest = await describeFiles(directory);
});
afterEach(() => rmSync(directory, { recursive: true }));

test('the checksum of a whole is that of its pieces put together', () => {
  const piece = Buffer.from(Uint8Array.from({ length: 70_001 }, (_, i) => (i * i) % 251));
  for (const at of [0, 1, 255, 4096, 70_001])
    expect(crc32Combine(crc32(piece.subarray(0, at)), crc32(piece.subarray(at)), piece.length - at)).toBe(
      crc32(piece),
    );
  // Longer than 32 bits count: 6 GiB of zeros, from squares of one piece.
  let [zeros, length] = [crc32(Buffer.alloc(3 << 10)), 3 << 10];
  const all = zeros;
  for (let i = 0; i < 21; i++, length *= 2) zeros = crc32Combine(zeros, zeros, length);
  expect(length).toBe(6 * 2 ** 30);
  expect(crc32Combine(crc32Combine(zeros, all, 3 << 10), zeros, length)).toBe(
    crc32Combine(zeros, crc32Combine(all, zeros, length), length + (3 << 10)),
  );
});

test('each tensor has one, and so has the file', () => {
  const { tensors, ...whole } = manifest['model.safetensors'] ?? { bytes: 0, crc32: '' };
  expect(whole).toEqual({ bytes: bytes.length, crc32: hex(crc32(bytes)) });
  const end = dataStart + 12 + 4 * LONG;
  expect(Object.entries(tensors ?? {})).toEqual([
    ['a.weight', hex(crc32(bytes.subarray(dataStart, dataStart + 12)))],
    ['empty', '00000000'],
    ['b.weight', hex(crc32(bytes.subarray(dataStart + 12, end)))],
    ['norm', hex(crc32(bytes.subarray(end)))],
  ]);
  expect(manifest['config.json']).toEqual({ bytes: 2, crc32: hex(crc32('{}')) });
});

test('what is as it was saved is accepted, and what was saved before tensors had checksums', async () => {
  await checkFiles(directory, manifest);
  const { tensors: _, ...old } = manifest['model.safetensors'] ?? { bytes: 0, crc32: '' };
  await checkFiles(directory, { 'model.safetensors': old });
});

/** The first offset of each thing that a flipped bit can hit. */
const places: [string, () => number, RegExp][] = [
  ['a tensor', () => dataStart + 5, /of its 4 tensors a\.weight is damaged: expected the checksum/],
  ['one of many pieces', () => dataStart + 12 + (9 << 19), /of its 4 tensors b\.weight is damaged/],
  ['the last byte', () => bytes.length - 1, /of its 4 tensors norm is damaged/],
  ['the length of the header', () => 0, /its header is damaged/],
  ['a name in the header', () => bytes.indexOf('a.weight'), /its header is damaged/],
  ['a place in the header', () => bytes.indexOf('[0,12]') + 1, /its header is damaged/],
  ['the padding of the header', () => bytes.indexOf('"F32"') + 1, /its header is damaged/],
];

test.each(places)('a flipped bit in %s is found, and where it is', async (_, at, message) => {
  bytes[at()] = (bytes[at()] as number) ^ 1;
  writeFileSync(file, bytes);
  await expect(checkFiles(directory, manifest)).rejects.toMatchObject({
    code: 'IO',
    message: expect.stringMatching(message),
  });
});

test('two damaged tensors, and a short file', async () => {
  for (const at of [dataStart, dataStart + 20]) bytes[at] = (bytes[at] as number) ^ 1;
  writeFileSync(file, bytes);
  await expect(checkFiles(directory, manifest)).rejects.toThrow(
    /of its 4 tensors a\.weight, b\.weight are damaged/,
  );
  writeFileSync(file, bytes.subarray(0, -1));
  await expect(checkFiles(directory, manifest)).rejects.toThrow(/expected \d+ bytes, but it has \d+/);
});
