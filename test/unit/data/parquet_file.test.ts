import { brotliCompressSync, gzipSync } from 'node:zlib';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { ParquetFile } from '../../../ts/data/parquet_file';
import { openRowFile, RowFiles } from '../../../ts/data/row_file';
import { rowsOf, write } from './written_rows';

/** A Zstandard frame of one raw block (RFC 8878), and an LZ4 block of literals. */
const zstd = (input: Uint8Array): Uint8Array => {
  const header = Buffer.alloc(4 + 1 + 4 + 3);
  header.writeUInt32LE(0xfd2fb528, 0);
  header[4] = 0xa0; // single segment, content size of 4 bytes
  header.writeUInt32LE(input.length, 5);
  header.writeUIntLE(1 | (input.length << 3), 9, 3);
  return Buffer.concat([header, input]);
};
const lz4 = (input: Uint8Array): Uint8Array => {
  const length: number[] = [];
  let rest = input.length - 15;
  for (; rest >= 255; rest -= 255) length.push(255);
  return rest < 0
    ? Buffer.concat([Buffer.from([input.length << 4]), input])
    : Buffer.concat([Buffer.from([0xf0, ...length, rest]), input]);
};

type Codec = NonNullable<Parameters<typeof parquetWriteBuffer>[0]['codec']>;

describe('parquet', () => {
  const names = Array.from({ length: 100 }, (_, i) => `name ${i} ${'z'.repeat(i)}`);
  const parquet = (options: object = {}, name = 'a.parquet'): string =>
    write(
      name,
      Buffer.from(
        parquetWriteBuffer({
          columnData: [
            { name: 'name', data: names, type: 'STRING' },
            { name: 'big', data: names.map((_, i) => 2n ** 53n - 50n + BigInt(i)), type: 'INT64' },
            { name: 'maybe', data: names.map((_, i) => (i % 3 === 0 ? null : i / 2)), type: 'DOUBLE' },
          ],
          ...options,
        }),
      ),
    );

  it.each([
    ['UNCOMPRESSED', null],
    ['SNAPPY', null],
    ['GZIP', (input: Uint8Array) => gzipSync(input)],
    ['BROTLI', (input: Uint8Array) => brotliCompressSync(input)],
    ['ZSTD', zstd],
    ['LZ4_RAW', lz4],
  ] as const)('is read when compressed with %s', async (codec, compress) => {
    const options = compress === null ? { codec } : { codec, compressors: { [codec]: compress } };
    const file = await openRowFile(parquet(options));
    expect((await rowsOf(file)).map((row) => row['name'])).toEqual(names);
  });

  it('null structs are null, also where LZ4 has compressed a dictionary without entries', async () => {
    // pyarrow 25: [{a: null}, {a: null}] of struct<b: list<string>>, compression lz4, no statistics, no schema of its own.
    const bytes =
      'UEFSMRUEFQAVAkwVABUAEgAAABUAFRoVHCwVBBUQFQYVBhwAAADQAgAAAAQAAgAAAAQAABUEGVw1ABgGc2NoZW1hFQIANQIYAWEVAgA1AhgBYhUCFQZMPAAAADUE' +
      'GARsaXN0FQIAFQwlAhgHZWxlbWVudCUATBwAAAAWBBkcGRwmABwVDBk1AAYQGUgBYQFiBGxpc3QHZWxlbWVudBUOFgQWXBZgJiYmCCksFQQVABUCABUAFRAVAgA8' +
      'FgAZJgQAGVYEAAAAAAAAABZcFgQmCBZgACggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lvbiAyNS4wLjEZHBwAAADHAAAAUEFSMQ==';
    const file = await openRowFile(write('nulls.parquet', Buffer.from(bytes, 'base64')));
    expect(await rowsOf(file)).toStrictEqual([{ a: null }, { a: null }]);
  });

  it('of a codec that cannot be read is one error, which says what to do', async () => {
    const codec: Codec = 'LZO';
    const path = parquet({ codec, compressors: { LZO: (input: Uint8Array) => input } });
    await expect(openRowFile(path)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(
        /a\.parquet: column name is compressed with LZO, expected one of .*ZSTD.*to_parquet/,
      ),
    });
  });

  it('keeps nulls, and integers as numbers where that is exact', async () => {
    const file = await openRowFile(parquet());
    expect(await file.row(0)).toMatchObject({ maybe: null, big: 2 ** 53 - 50 });
    expect(await file.row(49)).toMatchObject({ maybe: 24.5, big: Number.MAX_SAFE_INTEGER });
    expect(await file.row(60)).toMatchObject({ big: 2n ** 53n + 10n });
  });

  it('refuses bytes that are no UTF-8, by row and column; U+FFFD itself is text', async () => {
    const good = ['a', '\ufffd'].map((value) => Buffer.from(value));
    const bad = Buffer.from('caf\u00e9', 'latin1');
    const column = (name: string, data: unknown[]) => ({ name, data, type: 'BYTE_ARRAY' as const });
    const columnData = [column('prompt', [...good, good[0]]), column('answer', [...good, bad])];
    const file = await openRowFile(write('latin.parquet', Buffer.from(parquetWriteBuffer({ columnData }))));
    expect(await file.row(1)).toEqual({ prompt: '\ufffd', answer: '\ufffd' });
    await expect(file.row(2)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(
        /latin\.parquet, row 2: column answer holds bytes that are not valid UTF-8: text must be/,
      ),
    });
  });

  it('decimals are the doubles nearest to them, and integers beyond 2^53 keep their digits', async () => {
    const decimal = {
      converted_type: 'DECIMAL',
      repetition_type: 'OPTIONAL',
      scale: 2,
      precision: 38,
    } as const;
    const wide = { ...decimal, type: 'FIXED_LEN_BYTE_ARRAY', type_length: 16 } as const;
    const digits = [35n, 1999n, -110n, null, 0n, 700n, 123456789012345678901234n, 1234567890123456789000n];
    const numbers = [
      0.35,
      19.99,
      -1.1,
      null,
      0,
      7,
      Number('1234567890123456789012.34'),
      12345678901234567890n,
    ];
    // Of the narrow types: what int32 holds.
    const few = digits.map((value) => (value !== null && value < 2n ** 31n ? value : null));
    const narrow = numbers.map((value, i) => (few[i] === null ? null : value));
    const list = { repetition_type: 'OPTIONAL', converted_type: 'LIST', num_children: 1 } as const;
    const path = write(
      'decimals.parquet',
      Buffer.from(
        parquetWriteBuffer({
          columnData: [
            { name: 'wide', data: digits },
            { name: 'int32', data: few },
            { name: 'int64', data: few },
            { name: 'struct', data: digits.map((a, i) => ({ a, b: few[i], c: BigInt(i) })) },
            { name: 'list', data: digits.map((value) => (value === null ? null : [value, null, 25n])) },
          ],
          schema: [
            { name: 'root', num_children: 5 },
            { name: 'wide', ...wide },
            { name: 'int32', type: 'INT32', ...decimal },
            { name: 'int64', type: 'INT64', ...decimal },
            { name: 'struct', repetition_type: 'OPTIONAL', num_children: 3 },
            { name: 'a', ...wide },
            { name: 'b', type: 'INT32', ...decimal, scale: 1 },
            { name: 'c', type: 'INT64', repetition_type: 'OPTIONAL' },
            { name: 'list', ...list },
            { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
            { name: 'element', ...wide, scale: 3 },
          ],
        }),
      ),
    );
    const rows = await rowsOf(await openRowFile(path));
    expect(rows.map((row) => row['wide'])).toEqual(numbers);
    expect(rows.map((row) => row['int32'])).toEqual(narrow);
    expect(rows.map((row) => row['int64'])).toEqual(narrow);
    expect(rows[0]?.['struct']).toEqual({ a: 0.35, b: 3.5, c: 0 });
    expect(rows[3]?.['struct']).toEqual({ a: null, b: null, c: 3 });
    expect(rows[0]?.['list']).toEqual([0.035, null, 0.025]);
    expect(rows[3]?.['list']).toBeNull();
    expect(rows[1]?.['list']).toEqual([1.999, null, 0.025]);
  });

  it('names a column that is there twice, and a file without anything', async () => {
    const columnData = ['a', 'b', 'a'].map((name) => ({ name, data: ['x'], type: 'STRING' as const }));
    const path = write('twice.parquet', Buffer.from(parquetWriteBuffer({ columnData })));
    await expect(openRowFile(path)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: `[data] ${path}: there are two columns a: write the file again with one of them`,
    });
    const wanted = { required: ['b'], optional: [] };
    expect((await openRowFile(path, wanted)).length).toBe(1);
    await expect(openRowFile(write('empty.parquet', ''))).rejects.toThrow(
      /empty\.parquet: the file is empty/,
    );
  });

  it('keeps text of every script, also where nothing says that it is text, and JSON', async () => {
    const text = ['ünï 😀', '', '日本語', 'a\u0000b'];
    const path = write(
      'text.parquet',
      Buffer.from(
        parquetWriteBuffer({
          columnData: [
            { name: 'text', data: text, type: 'STRING' },
            { name: 'bytes', data: text.map((value) => Buffer.from(value)), type: 'BYTE_ARRAY' },
            { name: 'json', data: text.map((value) => ({ value, n: [1] })), type: 'JSON' },
          ],
        }),
      ),
    );
    const rows = await rowsOf(await openRowFile(path));
    expect(rows.map((row) => row['text'])).toEqual(text);
    expect(rows.map((row) => row['bytes'])).toEqual(text);
    expect(rows.map((row) => row['json'])).toEqual(text.map((value) => ({ value, n: [1] })));
  });

  it('reads only the columns that are wanted', async () => {
    const wanted = { required: ['big'], optional: ['maybe', 'absent'] };
    const file = await openRowFile(parquet(), wanted);
    expect(Object.keys(await file.row(7))).toEqual(['big', 'maybe']);
    await expect(openRowFile(parquet(), { required: ['x'], optional: [] })).rejects.toThrow(
      /a\.parquet, row 0: no column 'x'; the columns are name, big, maybe/,
    );
  });

  it('reads every row rightly when almost nothing may be kept', async () => {
    const file = await ParquetFile.open(parquet({ rowGroupSize: 7 }), null, 1);
    for (const i of [99, 0, 50, 6, 7, 98]) expect((await file.row(i))['name']).toBe(names[i]);
    expect(file.length).toBe(100);
  });

  it('that is damaged inside names the row group', async () => {
    const bytes = Buffer.from(
      parquetWriteBuffer({ columnData: [{ name: 'name', data: names, type: 'STRING' }], codec: 'SNAPPY' }),
    );
    bytes.fill(0xff, 30, 200);
    const file = await openRowFile(write('bad.parquet', bytes));
    await expect(file.row(3)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(/bad\.parquet, row group 0: .*damaged/),
    });
  });

  it('mixes with other files', async () => {
    const files = await RowFiles.open([
      write('a.jsonl', '{"name":"first"}'),
      parquet(),
      write('b.json', '[{"name":"z"}]'),
    ]);
    expect(files.length).toBe(102);
    const at = async (i: number) => {
      const { file, row } = files.locate(i);
      return (await file.row(row))['name'];
    };
    expect(await Promise.all([0, 1, 100, 101].map(at))).toEqual(['first', names[0], names[99], 'z']);
  });
});
