// Tokenizers, chat templates, JSON lines and parquet.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { RlDataset } from '../../../ts/data/rl_dataset';
import { RowFiles } from '../../../ts/data/row_file';
import { chooseRows } from '../../../ts/data/shuffle';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { rlRow, tokenizerDirectory } from '../../unit/data/fake_tokenizer';
import type { Cases, HostileCase } from './case';

/** Changes of a tokenizer.json that is right. */
const TOKENIZERS: readonly [string, (definition: Record<string, unknown>) => unknown, ...string[]][] = [
  ['null', () => null, 'tokenizer.json'],
  ['a list', () => [], 'tokenizer.json'],
  ['a word', () => 'x', 'tokenizer.json'],
  ['no model', ({ model: _, ...rest }) => rest, 'tokenizer.json'],
  ['a model of null', (d) => ({ ...d, model: null }), 'tokenizer.json'],
  [
    'a model of an unknown type',
    (d) => ({ ...d, model: { type: '\u001b[31m', vocab: {} } }),
    'tokenizer.json',
  ],
  ['a vocabulary of words', (d) => ({ ...d, model: { type: 'WordLevel', vocab: { a: 'b' } } }), 'token "a"'],
  ['an id of 1e18', (d) => ({ ...d, model: { type: 'WordLevel', vocab: { a: 1e18 } } }), 'token "a"'],
  [
    'a negative id',
    (d) => ({ ...d, model: { type: 'WordLevel', vocab: { '\u0007': -1 } } }),
    'tokenizer.json',
  ],
  ['added tokens of null', (d) => ({ ...d, added_tokens: [null] }), 'tokenizer.json'],
  ['added tokens that are no list', (d) => ({ ...d, added_tokens: 5 }), 'added_tokens'],
  ['an added token without an id', (d) => ({ ...d, added_tokens: [{ content: 'x' }] }), 'token "x"'],
  [
    'a pre-tokenizer of an unknown type',
    (d) => ({ ...d, pre_tokenizer: { type: '\u001b' } }),
    'tokenizer.json',
  ],
  [
    'a pattern that is none',
    (d) => ({ ...d, pre_tokenizer: { type: 'Split', pattern: { Regex: '(' } } }),
    'tokenizer',
  ],
  ['a normalizer of a number', (d) => ({ ...d, normalizer: 5 }), 'tokenizer'],
  [
    'a decoder of an unknown type',
    (d) => ({ ...d, decoder: { type: 'x'.repeat(1_000_000) } }),
    'tokenizer.json',
  ],
];

const tokenizerCases: Cases = (directory) => {
  const cases: HostileCase[] = [];
  const use = (path: string) => () => {
    const tokenizer = Tokenizer.load(path);
    tokenizer.decode(tokenizer.encode('a b'), { skipSpecialTokens: true });
  };
  for (const [name, change, ...place] of TOKENIZERS) {
    const path = tokenizerDirectory();
    const file = join(path, 'tokenizer.json');
    writeFileSync(file, JSON.stringify(change(JSON.parse(readFileSync(file, 'utf8')))));
    cases.push({ name: `a tokenizer with ${name}`, place, run: use(path) });
  }
  const broken = (name: string, file: string, make: (path: string) => void): void => {
    const path = tokenizerDirectory();
    make(join(path, file));
    cases.push({ name, place: [file], run: use(path) });
  };
  const fifo = (path: string): void => {
    execFileSync('rm', ['-f', path]);
    execFileSync('mkfifo', [path]);
  };
  broken('a FIFO as tokenizer.json', 'tokenizer.json', fifo);
  broken('a FIFO as tokenizer_config.json', 'tokenizer_config.json', fifo);
  broken('a FIFO as chat_template.jinja', 'chat_template.jinja', fifo);
  broken('control characters in tokenizer.json', 'tokenizer.json', (path) =>
    writeFileSync(path, '{"a": \u001b[2J}'),
  );
  broken('brackets in tokenizer_config.json', 'tokenizer_config.json', (path) =>
    writeFileSync(path, '['.repeat(1e5)),
  );
  cases.push({ name: 'no tokenizer', place: [directory], run: use(directory) });
  return cases;
};

const doubled = (start: string, grow: string, show: string): string =>
  `{% set ns = namespace(s=${start}) %}{% for i in range(64) %}{% set ns.s = ${grow} %}{% endfor %}{{ ${show} }}`;

const TEMPLATES: readonly [string, string, unknown?][] = [
  ['a long range', '{{ range(1000000000) }}'],
  ['a long range that is joined', '{{ range(100000000) | join }}'],
  ['loops in loops', '{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}'],
  [
    'loops in loops that write',
    '{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}',
  ],
  ['a macro that calls itself', '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}'],
  [
    'a macro that calls itself twice',
    '{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}',
  ],
  ['a text that doubles', doubled("'x'", 'ns.s ~ ns.s', 'ns.s')],
  ['a list that doubles', doubled('[1]', 'ns.s + ns.s', 'ns.s | length')],
  ['a list of lists', doubled('[1]', '[ns.s, ns.s]', 'ns.s')],
  [
    'equality of lists of lists',
    doubled('[1]', '[ns.s, ns.s]', 'ns.s == [ns.s, ns.s]') + doubled('[1]', '[ns.s, ns.s]', 'ns.s | tojson'),
  ],
  ['a repeated text', "{{ 'x' * 1000000000 }}"],
  ['a replaced text', "{% set s = 'x' * 10000000 %}{{ s | replace('x', s) }}"],
  ['a wide indent', "{{ 'a\nb' | indent(1000000000) }}"],
  ['blanks', ' '.repeat(200_000)],
  ['brackets', `{{ ${'('.repeat(50_000)}1${')'.repeat(50_000)} }}`],
  ['1 MB of text', 'x'.repeat(1_000_000)],
  ['blocks without end', '{% if 1 %}'.repeat(10_000)],
  ['an exception with control characters', "{{ raise_exception('\u001b[2J' ~ 'x' * 100000) }}"],
  ['a list added to a text', "{{ 'a' + messages }}"],
  ['a dict added to a text', "{{ 'a' + messages[0] }}"],
  [
    'null added to a text',
    "{{ 'a' + messages[0].content }}",
    [{ role: 'user', content: null, tool_calls: [1] }],
  ],
  ['an attribute of nothing', '{{ nothing.at.all }}'],
  ['an unknown filter', '{{ messages | pickle }}'],
  ['an unknown function', '{{ open("/etc/passwd") }}'],
  ['the way to JavaScript', '{{ messages.constructor.constructor("return process")().exit(0) }}'],
];

const templateCases: Cases = () =>
  TEMPLATES.map(([name, template, messages]) => ({
    name: `a chat template with ${name}`,
    place: ['chat template'],
    run: () => {
      const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
      tokenizer.renderChat((messages as []) ?? [{ role: 'user', content: 'x' }], true);
    },
  }));

const row = (changes: object = {}): string => JSON.stringify({ ...rlRow('1+1'), ...changes });

const lines = (): [string, string | Buffer, ...string[]][] => [
  ['100 000 levels', `{"prompt":${'['.repeat(100_000)}${']'.repeat(100_000)}}`, ':1', 'levels deep'],
  ['100 000 brackets', '['.repeat(100_000), ':1', 'JSON'],
  [
    'no UTF-8',
    Buffer.concat([Buffer.from(`${row()}\n{"prompt":"`), Buffer.from([0xc3, 0x28]), Buffer.from('"}\n')]),
    ':2: not valid UTF-8',
  ],
  ['a key twice', `${row()}\n{"prompt":"a","prompt":"b"}`, ':2', "'prompt' appears twice"],
  [
    'a key twice inside',
    `{"prompt":"a","reward_model":{"ground_truth":1,"ground_truth":2}}`,
    ':1',
    "'ground_truth' appears",
  ],
  ['control characters', `{"prompt": \u001b[31m}`, ':1', 'JSON'],
  ['a number', '5', ':1', 'JSON object'],
  ['null', `${row()}\n\nnull`, ':3', 'JSON object'],
  ['a list', '[1]', ':1', 'JSON object'],
  ['a word of 10 MB', 'x'.repeat(10_000_000), ':1', 'JSON'],
  ['half a row', row().slice(0, 20), ':1', 'JSON'],
  ['zeros', Buffer.alloc(1000), ':1', 'JSON'],
  ['UTF-16', Buffer.from(`\ufeff${row()}`, 'utf16le'), ':1', 'UTF-8'],
  ['nothing', '', 'empty'],
  ['blanks', '\n\n  \n', 'empty'],
  ['no prompt', row({ prompt: undefined }), ':1', "'prompt'"],
  ['a prompt of null', row({ prompt: null }), ':1', 'prompt'],
  ['a prompt of a number', row({ prompt: 5 }), ':1', 'prompt'],
  ['an empty conversation', row({ prompt: [] }), ':1', 'prompt'],
  ['a conversation of numbers', row({ prompt: [1, 2] }), ':1', 'prompt'],
  ['a role of null', row({ prompt: [{ role: null, content: 'x' }] }), ':1', 'prompt'],
  ['no reward', row({ reward_model: undefined }), ':1', "'reward_model'"],
  ['a reward of a list', row({ reward_model: [] }), ':1', 'reward_model'],
  ['a data source of an object', row({ data_source: {} }), ':1', 'data_source'],
  ['extra_info of a word', row({ extra_info: '\u001b[31m'.repeat(1000) }), ':1', 'extra_info'],
  ['a column with control characters', JSON.stringify({ '\u001b[2J\u0007': 1 }), ':1', "'prompt'"],
  [
    '100 000 columns',
    JSON.stringify(Object.fromEntries(Array.from({ length: 1e5 }, (_, i) => [`c${i}`, 1]))),
    ':1',
    "'prompt'",
  ],
];

async function openRl(file: string): Promise<void> {
  const tokenizer = Tokenizer.load(tokenizerDirectory());
  await RlDataset.open([file], tokenizer, {
    promptKey: 'prompt',
    dataSourceKey: 'data_source',
    maxPromptLength: 100,
    filterOverlongPrompts: false,
    truncation: 'error',
    maxSamples: -1,
    shuffle: false,
    seed: 1,
  });
}

const lineCases: Cases = (directory) => {
  const cases = lines().map(([name, text, ...place], i): HostileCase => {
    const file = join(directory, `lines_${i}.jsonl`);
    writeFileSync(file, text);
    return { name: `JSON lines with ${name}`, place: [file, ...place], run: () => openRl(file) };
  });
  const other = (name: string, file: string, make: (path: string) => void, ...place: string[]): void => {
    const path = join(directory, file);
    make(path);
    cases.push({ name, place: [path, ...place], run: () => openRl(path) });
  };
  other('a FIFO of JSON lines', 'fifo.jsonl', (path) => execFileSync('mkfifo', [path]), 'a FIFO');
  other('a directory of JSON lines', 'directory.jsonl', (path) => mkdirSync(path), 'a directory');
  other('a FIFO of parquet', 'fifo.parquet', (path) => execFileSync('mkfifo', [path]), 'a FIFO');
  other(
    'an unknown kind of file',
    'data.csv',
    (path) => writeFileSync(path, 'prompt\n'),
    '.parquet, .jsonl or .json',
  );
  other('no file', 'none.jsonl', () => undefined);
  other('an array that is cut off', 'cut.json', (path) => writeFileSync(path, `[${row()},{"a":`), 'JSON');
  other('an array with a key twice', 'twice.json', (path) => writeFileSync(path, '[\n{"a":1,"a":2}]'), ':2');
  return cases;
};

const ROWS = 100;

/** A parquet file of three columns, changed byte by byte. */
function parquet(change: (bytes: Buffer) => Buffer): Buffer {
  const columnData = ['prompt', 'data_source', 'reward_model'].map((name) => ({
    name,
    data: Array.from({ length: ROWS }, (_, i) => `${name} ${i}`),
  }));
  return change(Buffer.from(parquetWriteBuffer({ columnData, codec: 'UNCOMPRESSED' })));
}

const footerAt = (bytes: Buffer): number => bytes.length - 8 - bytes.readUInt32LE(bytes.length - 8);

function withFooterLength(bytes: Buffer, length: number): Buffer {
  bytes.writeUInt32LE(length, bytes.length - 8);
  return bytes;
}

/** As thrift has it: zigzag, seven bits a byte. */
function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  for (let rest = value * 2n; ; rest >>= 7n) {
    bytes.push(Number(rest & 0x7fn) | (rest > 0x7fn ? 0x80 : 0));
    if (rest <= 0x7fn) return Buffer.from(bytes);
  }
}

/** The footer's numbers of rows and values become another number. */
function claimRows(bytes: Buffer, rows: bigint): Buffer {
  const start = footerAt(bytes);
  const parts: Buffer[] = [];
  const own = varint(BigInt(ROWS));
  let footer = bytes.subarray(start, bytes.length - 8);
  for (let at = footer.indexOf(own); at >= 0; at = footer.indexOf(own)) {
    parts.push(footer.subarray(0, at), varint(rows));
    footer = footer.subarray(at + own.length);
  }
  const whole = Buffer.concat([...parts, footer]);
  const size = Buffer.alloc(4);
  size.writeUInt32LE(whole.length);
  return Buffer.concat([bytes.subarray(0, start), whole, size, Buffer.from('PAR1')]);
}

const PARQUETS: readonly [string, (bytes: Buffer) => Buffer, ...string[]][] = [
  ['in name only', () => Buffer.from('prompt\n1'), 'parquet'],
  ['of nothing', () => Buffer.alloc(0), 'parquet'],
  ['of four bytes', () => Buffer.from('PAR1'), 'parquet'],
  ['without an end', (bytes) => bytes.subarray(0, bytes.length - 20), 'parquet'],
  ['without a beginning', (bytes) => bytes.subarray(bytes.length - 20), 'parquet'],
  ['whose footer is longer than it', (bytes) => withFooterLength(bytes, 2 ** 31), 'parquet'],
  ['whose footer has no length', (bytes) => withFooterLength(bytes, 0), ''],
  ['whose footer is zeros', (bytes) => bytes.fill(0, footerAt(bytes), bytes.length - 8), ''],
  ['whose footer is ones', (bytes) => bytes.fill(0xff, footerAt(bytes), bytes.length - 8), 'parquet'],
  ['whose footer nests without end', (bytes) => bytes.fill(0x1c, footerAt(bytes), bytes.length - 8), ''],
  ['whose pages are zeros', (bytes) => bytes.fill(0, 4, footerAt(bytes)), 'row group 0'],
  ['whose pages are ones', (bytes) => bytes.fill(0xff, 4, footerAt(bytes)), 'row group 0'],
  ['that claims 2^40 rows', (bytes) => claimRows(bytes, 2n ** 40n), 'claims 1099511627776 rows'],
  ['that claims 2^62 rows', (bytes) => claimRows(bytes, 2n ** 62n), 'rows'],
  ['that claims 10^9 rows', (bytes) => claimRows(bytes, 10n ** 9n), 'claims 1000000000 rows'],
  ['that claims 120 rows', (bytes) => claimRows(bytes, 120n), 'row group 0'],
];

const parquetCases: Cases = (directory) =>
  PARQUETS.map(([name, change, ...place], i) => {
    const file = join(directory, `data_${i}.parquet`);
    writeFileSync(file, parquet(change));
    return {
      name: `a parquet file ${name}`,
      place: [file, ...place],
      run: async () => {
        const rows = await RowFiles.open([file], { required: ['prompt'], optional: [] });
        const [last] = chooseRows(rows.length, -1, null).slice(-1);
        const { file: found, row: at } = rows.locate(last as number);
        await found.row(at);
      },
    };
  });

export const dataCases: Cases = (directory) =>
  [tokenizerCases, templateCases, lineCases, parquetCases].flatMap((cases) => cases(directory));
