import { constants } from 'node:buffer';
import {
  appendFileSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  truncateSync,
} from 'node:fs';
import { join } from 'node:path';
import { openJsonFile } from '../../../ts/data/json_file';
import type { Row } from '../../../ts/data/row';
import { openRowFile } from '../../../ts/data/row_file';
import { temporaryDirectory } from './fake_tokenizer';
import { rowsOf, write } from './written_rows';

describe('JSON', () => {
  const rows = [
    { a: 1, text: 'x,]}"\\' },
    { a: [1, { b: '[{' }], text: 'ünï\u2028 😀' },
    { a: null, text: '' },
  ];
  const lines = `\uFEFF${JSON.stringify(rows[0])}\r\n\n   \n  ${JSON.stringify(rows[1])}  \n${JSON.stringify(rows[2])}`;
  const array = ` \n${JSON.stringify(rows, null, 2)}\n `;

  it('a row that is larger than a text can be is named', async () => {
    const path = write('a.jsonl', '{"a":1}\n{"a":"');
    // Without blocks on the disk.
    truncateSync(path, constants.MAX_STRING_LENGTH + 10);
    appendFileSync(path, '"}\n');
    await expect(openJsonFile(path).row(1)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringContaining(`${path}:2: expected at most ${constants.MAX_STRING_LENGTH} bytes`),
    });
  });

  // 0: nothing is parsed at once.
  it.each([Number.POSITIVE_INFINITY, 0])(
    'lines and arrays are the same rows (parsed up to %d bytes)',
    async (limit) => {
      for (const [name, content] of [
        ['a.jsonl', lines],
        ['a.json', lines],
        ['a.json', array],
        ['a.json', '[]'],
        ['a.jsonl', '\n \n'],
      ] as const) {
        const file = openJsonFile(write(name, content), { parsedAtOnce: limit });
        expect(file.inMemory).toBe(limit > 0);
        expect(await rowsOf(file)).toEqual(content.includes('x,') ? rows : []);
      }
      const file = openJsonFile(write('a.jsonl', lines), { parsedAtOnce: limit });
      expect([0, 1, 2].map((i) => file.where(i))).toEqual([1, 4, 5].map((n) => `${file.path}:${n}`));
    },
  );

  it.each([Number.POSITIVE_INFINITY, 0])(
    'integers beyond 2^53 keep their digits, and nothing else becomes a bigint (parsed up to %d bytes)',
    async (limit) => {
      const row =
        '{"a": 12345678901234567891, "b": [-9007199254740993], "c": 0.1234567890123456, "d": "12345678901234567891", "e": 9007199254740991}';
      const expected = {
        a: 12345678901234567891n,
        b: [-9007199254740993n],
        c: 0.1234567890123456,
        d: '12345678901234567891',
        e: 9007199254740991,
      };
      expect(await rowsOf(openJsonFile(write('a.jsonl', row), { parsedAtOnce: limit }))).toEqual([expected]);
      expect(await rowsOf(openJsonFile(write('a.json', `[${row}, {}]`), { parsedAtOnce: limit }))).toEqual([
        expected,
        {},
      ]);
    },
  );

  it('rows of a large file are found over the borders of what is read at once', async () => {
    const long = Array.from({ length: 60 }, (_, i) => ({ i, text: `é"${'y'.repeat(200_000 + i)}` }));
    for (const [name, content] of [
      ['big.jsonl', long.map((row) => JSON.stringify(row)).join('\n')],
      ['big.json', JSON.stringify(long)],
    ] as const) {
      const file = openJsonFile(write(name, content), { parsedAtOnce: 0 });
      expect(file.length).toBe(60);
      for (const i of [59, 0, 21, 20]) expect(await file.row(i)).toEqual(long[i]);
    }
  });

  it('a bad row of a large file is named when it is read', async () => {
    const file = openJsonFile(write('a.jsonl', '{"a":1}\n{"a":\n[2]\n'), { parsedAtOnce: 0 });
    expect(await file.row(0)).toEqual({ a: 1 });
    await expect(file.row(1)).rejects.toThrow(`${file.path}:2: not valid JSON`);
    await expect(file.row(2)).rejects.toThrow(`${file.path}:3: expected a JSON object, got [2]`);
  });

  it('what is wrong with a row is told with the line of the file alone', () => {
    const path = write('a.jsonl', '{"a": 1}\n{"b": 2}\n{"c" 3}\n');
    expect(() => openJsonFile(path)).toThrow(
      expect.objectContaining({
        message: `[data] ${path}:3: not valid JSON: Expected ':' after property name in JSON at position 5`,
      }),
    );
  });

  // What is not an array as a whole has rows that nobody would miss.
  it.each([
    ['cut off', '[{"a":1},{"a":', 'the array ends within row 1'],
    ['cut off between rows', '[{"a":1},', 'the array ends within row 1'],
    ['followed by another', '[{"a":1}] \n[{"a":2}]', 'something follows the array, at byte 11'],
    ['followed by a comma', '[{"a":1}],', 'something follows the array, at byte 9'],
    ['with a comma at its end', '[{"a":1},]', 'row 1 is missing, at byte 9'],
    ['with a comma in front', '[,{"a":1}]', 'row 0 is missing, at byte 1'],
    ['with two commas', '[{"a":1},,{"a":2}]', 'row 1 is missing, at byte 9'],
    ['with a bracket too many', '[{"a":1}},{"a":2}]', 'a bracket closes that was not open, at byte 8'],
    ['with the wrong bracket', '[{"a":[1}]}]', 'a bracket closes that was not open, at byte 10'],
  ])('an array that is %s is an error', (_, content, problem) => {
    const path = write('a.json', content);
    const line = content.split('\n').length;
    expect(() => openJsonFile(path, { parsedAtOnce: 0 })).toThrow(
      `${path}:${line}: not valid JSON: ${problem}`,
    );
    expect(() => openJsonFile(path)).toThrow(`${path}:${line}`);
  });

  it.each([
    [
      'a number of Python',
      '[{"a":1},\n {"b":-Infinity}]',
      /:2, row 1: not valid JSON: .* \(Python's NaN, Infinity and None are no JSON: write null/,
    ],
    ['a word', '\n[{"a":1},\n {"b":\n oops}, {"c":3}]', /:3, row 1: not valid JSON: Unexpected token 'o'$/],
    [
      'a comma',
      '[\n{"a":1},\n{"a":1,}\n]',
      /:3, row 1: not valid JSON: Expected double-quoted property name/,
    ],
    [
      'two rows without a comma',
      '[{"a":1}\n{"b":2}]',
      /:2, row 0: not valid JSON: Unexpected non-whitespace/,
    ],
    ['an end too early', '[\n{"a":1},\n{"a":', /:3: not valid JSON: the array ends within row 1/],
  ])('an array with %s: line and row', (_, content, problem) => {
    const path = write('a.json', content);
    expect(() => openJsonFile(path)).toThrow(problem);
  });

  it.each(['rows', 'rows.parquet', 'rows.jsonl'])('a directory is told as one: %s', async (name) => {
    const path = join(temporaryDirectory(), name);
    mkdirSync(path);
    await expect(openRowFile(path)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: `[data] ${path}: expected a .parquet, .jsonl or .json file, got a directory: name the files in it, as a list`,
    });
    await expect(openRowFile(`${path}.none.jsonl`)).rejects.toMatchObject({ code: 'IO' });
  });

  it('what is malformed is bad data, and what cannot be read is not', () => {
    const code = (open: () => unknown): unknown => {
      try {
        return open();
      } catch (error) {
        return (error as { code?: unknown }).code;
      }
    };
    expect(code(() => openJsonFile(write('a.jsonl', '{"a":')))).toBe('INVALID_DATA');
    expect(code(() => openJsonFile(write('a.json', '[{"a":1},'), { parsedAtOnce: 0 }))).toBe('INVALID_DATA');
    expect(code(() => openJsonFile(write('a.jsonl', Buffer.from([0xff]))))).toBe('INVALID_DATA');
    expect(code(() => openJsonFile('/nowhere/a.jsonl'))).toBe('IO');
    expect(code(() => openJsonFile('/proc/self/mem.jsonl'))).toBe('IO');
    // Readable by its mode, but not: an error of the operating system in the middle of reading.
    const unreadable = write('mem.jsonl', '');
    rmSync(unreadable);
    symlinkSync('/proc/self/mem', unreadable);
    expect(code(() => openJsonFile(unreadable))).toBe('IO');
  });

  it('a file that is refused is closed', () => {
    const path = write('a.json', '[{"a":1},');
    const isOpen = (): boolean =>
      readdirSync('/proc/self/fd').some((fd) => {
        try {
          return readlinkSync(`/proc/self/fd/${fd}`) === path;
        } catch {
          return false; // the descriptor of the directory itself
        }
      });
    expect(() => openJsonFile(path, { parsedAtOnce: 0 })).toThrow('not valid JSON');
    expect(() => openJsonFile(path)).toThrow('not valid JSON');
    expect(isOpen()).toBe(false);
    openJsonFile(write('b.json', '[{"a":1}]'), { parsedAtOnce: 0 });
  });

  it('a row that is no UTF-8, has a key twice or no end is named, also in a large file', async () => {
    const deep = `{"a":${'['.repeat(300)}${']'.repeat(300)}}`;
    const bytes = Buffer.concat([
      Buffer.from('{"a":1}\n{"a":"'),
      Buffer.from([0xe2, 0x28]),
      Buffer.from(`"}\n{"a":{"b":1,"b":2}}\n${deep}\n{"a":{"b":1},"b":2}`),
    ]);
    const file = openJsonFile(write('a.jsonl', bytes), { parsedAtOnce: 0 });
    await expect(file.row(1)).rejects.toThrow(`${file.path}:2: not valid UTF-8`);
    await expect(file.row(2)).rejects.toThrow(`${file.path}:3: the key 'b' appears twice in one object`);
    await expect(file.row(3)).rejects.toThrow(`${file.path}:4: nested more than 200 levels deep`);
    expect(await file.row(4)).toEqual({ a: { b: 1 }, b: 2 });
  });

  it('__proto__ in a row is a key like any other', async () => {
    const file = openJsonFile(write('a.jsonl', '{"__proto__":{"polluted":1},"a":2}'));
    const row = await file.row(0);
    expect(Object.keys(row)).toEqual(['__proto__', 'a']);
    expect(({} as Row)['polluted']).toBeUndefined();
  });
});
