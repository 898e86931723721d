// What takes parquet pages apart, none of which may give more than the page's header says.
import * as zlib from 'node:zlib';
import type { Compressors } from 'hyparquet';
import { compressors as pure } from 'hyparquet-compressors';

type Decompress = NonNullable<Compressors[keyof Compressors]>;
type NodeDecompress = (input: Uint8Array, options: { maxOutputLength: number }) => Uint8Array;

/** Writers make pages of about a megabyte. */
const MOST_BYTES = 2 ** 30;
/** Bytes that one byte of LZ4 or snappy can stand for. */
const MOST_RATIO = 256;

/** Refuses a page whose header claims more than a page can be. */
const bounded =
  (decompress: Decompress | undefined, ratio: number | null): Decompress =>
  (input, length) => {
    // The block of nothing, as the dictionary of a column without values has it, is more than some of them can read.
    if (length === 0) return new Uint8Array(0);
    const most = ratio === null ? MOST_BYTES : Math.min(MOST_BYTES, ratio * (input.length + 64));
    if (!Number.isInteger(length) || length < 0 || length > most)
      throw new Error(`a page of ${input.length} bytes claims to hold ${length}`);
    return (decompress as Decompress)(input, length);
  };

/** gzip and brotli (and zstd from Node 22.15 on) come with Node and are faster there. */
const ofNode = (decompress: NodeDecompress): Decompress =>
  bounded((input, length) => decompress(input, { maxOutputLength: length }), null);

const { zstdDecompressSync: zstd } = zlib as { zstdDecompressSync?: NodeDecompress };

export const parquetCompressors: Compressors = {
  ...pure,
  SNAPPY: bounded(pure.SNAPPY, MOST_RATIO),
  LZ4: bounded(pure.LZ4, MOST_RATIO),
  LZ4_RAW: bounded(pure.LZ4_RAW, MOST_RATIO),
  GZIP: ofNode(zlib.gunzipSync),
  BROTLI: ofNode(zlib.brotliDecompressSync),
  ZSTD: zstd ? ofNode(zstd) : bounded(pure.ZSTD, null),
};
