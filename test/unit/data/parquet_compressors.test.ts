import { brotliCompressSync, gzipSync } from 'node:zlib';
import { parquetCompressors } from '../../../ts/data/parquet_compressors';

const zeros = Buffer.alloc(2 ** 20);
const decompress = (
  codec: 'GZIP' | 'BROTLI' | 'SNAPPY' | 'LZ4_RAW',
  input: Uint8Array,
  length: number,
): Uint8Array =>
  (parquetCompressors[codec] as (input: Uint8Array, length: number) => Uint8Array)(input, length);

test.each([
  ['GZIP', gzipSync(zeros)],
  ['BROTLI', brotliCompressSync(zeros)],
] as const)('%s: a page gives what its header says, and never more', (codec, page) => {
  expect(Buffer.from(decompress(codec, page, zeros.length)).equals(zeros)).toBe(true);
  expect(() => decompress(codec, page, 1000)).toThrow(/larger than 1000 bytes/);
});

test.each([
  ['GZIP', 2 ** 30 + 1],
  ['BROTLI', 2 ** 40],
  ['SNAPPY', 2 ** 20],
  ['LZ4_RAW', 2 ** 20],
  ['SNAPPY', -1],
  ['LZ4_RAW', 0.5],
] as const)(
  '%s: a page of ten bytes that claims %d is refused before room is made for it',
  (codec, length) => {
    expect(() => decompress(codec, new Uint8Array(10), length)).toThrow(
      `a page of 10 bytes claims to hold ${length}`,
    );
  },
);
