import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { samplesOf } from '../../../ts/data/dataset';
import { RlDataset, type RlDatasetOptions } from '../../../ts/data/rl_dataset';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { TroupeError } from '../../../ts/errors';
import { id, rlRow, TEMPLATE, temporaryDirectory, tokenizerDirectory, writeLines } from './fake_tokenizer';

const tokenizer = Tokenizer.load(tokenizerDirectory());

const OPTIONS: RlDatasetOptions = {
  promptKey: 'prompt',
  dataSourceKey: 'data_source',
  maxPromptLength: 100,
  filterOverlongPrompts: false,
  truncation: 'error',
  maxSamples: -1,
  shuffle: false,
  seed: 1,
};
const open = (files: string | string[], options: Partial<RlDatasetOptions> = {}) =>
  RlDataset.open([files].flat(), tokenizer, { ...OPTIONS, ...options });

const chat = (content: string) => [{ role: 'user', content }];
const text = async (dataset: RlDataset, i: number) =>
  tokenizer.decode((await dataset.sample(i))!.tokens, { skipSpecialTokens: false });
const texts = (dataset: RlDataset) =>
  Promise.all(Array.from({ length: dataset.length }, (_, i) => text(dataset, i)));

/** verl's columns, nested as pyarrow writes them. */
function writeParquet(prompts: readonly string[], rowGroupSize = 1000): string {
  const text = (name: string) =>
    ({ name, type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'OPTIONAL' }) as const;
  const group = (name: string, num_children: number) =>
    ({ name, num_children, repetition_type: 'OPTIONAL' }) as const;
  const file = join(temporaryDirectory(), 'data.parquet');
  const buffer = parquetWriteBuffer({
    schema: [
      { name: 'root', num_children: 4 },
      text('data_source'),
      { ...group('prompt', 1), converted_type: 'LIST' },
      { name: 'list', num_children: 1, repetition_type: 'REPEATED' },
      group('element', 2),
      text('content'),
      text('role'),
      group('reward_model', 2),
      text('ground_truth'),
      text('style'),
      group('extra_info', 2),
      { name: 'index', type: 'INT64', repetition_type: 'OPTIONAL' },
      text('split'),
    ],
    columnData: [
      { name: 'data_source', data: prompts.map(() => 'sums') },
      { name: 'prompt', data: prompts.map(chat) },
      { name: 'reward_model', data: prompts.map((p) => ({ ground_truth: `${p}!`, style: 'rule' })) },
      { name: 'extra_info', data: prompts.map((_, i) => ({ index: BigInt(i), split: 'train' })) },
    ],
    rowGroupSize,
  });
  writeFileSync(file, Buffer.from(buffer));
  return file;
}

describe('rows', () => {
  it("have verl's columns", async () => {
    const dataset = await open(writeLines([rlRow(chat('1+1'), ['2', 'two'])]));
    expect(dataset.length).toBe(1);
    expect(await dataset.sample(0)).toMatchObject({
      dataSource: 'sums',
      groundTruth: ['2', 'two'],
      extraInfo: { index: 7 },
    });
    expect(await text(dataset, 0)).toBe('<|user|>1+1<eos><|assistant|>');
  });

  it('may hold prompts as plain text, which get the special tokens of the tokenizer', async () => {
    const dataset = await open(writeLines([rlRow('ab')]));
    expect(Array.from((await dataset.sample(0))!.tokens)).toEqual([1, id('a'), id('b')]);
  });

  it('come from JSON, JSONL and several files', async () => {
    const json = join(temporaryDirectory(), 'a.json');
    writeFileSync(json, JSON.stringify([rlRow('a'), rlRow('b')]));
    const dataset = await open([json, writeLines([rlRow('c'), '', rlRow('d')])]);
    expect(await texts(dataset)).toEqual(['<bos>a', '<bos>b', '<bos>c', '<bos>d']);
  });

  it('come from parquet, over several row groups, in any order', async () => {
    const prompts = Array.from({ length: 25 }, (_, i) => `p${i}`);
    const dataset = await open(writeParquet(prompts, 10));
    expect(dataset.length).toBe(25);
    for (const i of [24, 0, 9, 10, 20]) {
      const sample = await dataset.sample(i);
      expect(await text(dataset, i)).toBe(`<|user|>p${i}<eos><|assistant|>`);
      expect(sample).toMatchObject({ groundTruth: `p${i}!`, extraInfo: { index: i, split: 'train' } });
    }
  });

  it('beyond maxSamples are left out, by seed when shuffling', async () => {
    const file = writeLines([...'abcdefgh'].map((c) => rlRow(c)));
    expect(await texts(await open(file, { maxSamples: 3 }))).toEqual(['<bos>a', '<bos>b', '<bos>c']);
    const draw = (seed: number) => open(file, { maxSamples: 3, shuffle: true, seed }).then(texts);
    expect(await draw(1)).toEqual(await draw(1));
    expect(new Set((await Promise.all([1, 2, 3, 4].map(draw))).map(String)).size).toBeGreaterThan(1);
  });
});

describe('long prompts', () => {
  const file = writeLines([rlRow('abcdefgh'), rlRow('ab')]);
  const limits = { maxPromptLength: 5 };

  it('are an error that names the row', async () => {
    const dataset = await open(file, limits);
    await expect(dataset.sample(0)).rejects.toThrow(
      `${file}:1: the prompt has 9 tokens, more than data.max_prompt_length 5`,
    );
    expect(await text(dataset, 1)).toBe('<bos>ab');
  });

  it.each([
    ['left', 'defgh'],
    ['right', '<bos>abcd'],
    ['middle', '<bos>afgh'],
  ] as const)('are cut: %s', async (truncation, expected) => {
    expect(await text(await open(file, { ...limits, truncation }), 0)).toBe(expected);
  });

  it('are filtered, and counted', async () => {
    const dataset = await open(file, { ...limits, filterOverlongPrompts: true });
    expect([dataset.length, await dataset.countUsable()]).toEqual([2, 1]);
    expect(await dataset.sample(0)).toBeNull();
    expect(await text(dataset, 1)).toBe('<bos>ab');
  });

  it('are counted with the tools that an agent shows, which are no part of the sample', async () => {
    const directory = tokenizerDirectory({
      chat_template: `{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}${TEMPLATE}`,
    });
    const withTools = Tokenizer.load(directory);
    const rows = writeLines([rlRow(chat('abc')), rlRow('abc'), rlRow(chat('abcd')), rlRow('abcd')]);
    const kept = async (tools: RlDatasetOptions['tools']): Promise<unknown[]> => {
      const dataset = await RlDataset.open([rows], withTools, {
        promptKey: 'prompt',
        dataSourceKey: 'data_source',
        maxPromptLength: 27,
        filterOverlongPrompts: true,
        truncation: 'error',
        maxSamples: -1,
        shuffle: false,
        seed: 1,
        ...(tools === undefined ? {} : { tools }),
      });
      const samples = await samplesOf(dataset, [0, 1, 2, 3]);
      expect(await dataset.countUsable()).toBe(samples.filter((sample) => sample !== null).length);
      return samples.map((sample) => sample && withTools.decode(sample.tokens, { skipSpecialTokens: false }));
    };
    const [message, text] = ['<|user|>abc<eos><|assistant|>', '<bos>abc'];
    const longer = ['<|user|>abcd<eos><|assistant|>', '<bos>abcd'];
    expect(await kept(undefined)).toEqual([message, text, ...longer]);
    expect(await kept([])).toEqual([message, text, ...longer]);
    expect(await kept([{ type: 'function', function: { name: 'fg' } }])).toEqual([message, text, null, null]);
  });

  it('are counted exactly: also text that normalisation could lengthen, and around the limit', async () => {
    const rows = Array.from({ length: 40 }, (_, n) => rlRow(n % 2 ? 'a'.repeat(n) : 'é'.repeat(n + 1)));
    for (const maxPromptLength of [9, 20, 33]) {
      const dataset = await open(writeLines(rows), { maxPromptLength, filterOverlongPrompts: true });
      const kept = (await samplesOf(dataset, [...rows.keys()])).filter((sample) => sample !== null);
      expect(kept.length).toBeGreaterThan(0);
      expect(await dataset.countUsable()).toBe(kept.length);
    }
  });

  it('alone are an error with the shortest length', async () => {
    const dataset = await open(file, { maxPromptLength: 2, filterOverlongPrompts: true });
    await expect(dataset.countUsable()).rejects.toThrow(
      'all 2 prompts are longer than data.max_prompt_length 2; the shortest has 3 tokens',
    );
  });
});

describe('bad files', () => {
  const expectError = async (file: string, message: string | RegExp, options = {}) => {
    await expect(open(file, options).then((dataset) => dataset.sample(0))).rejects.toMatchObject({
      code: expect.stringMatching(/^(INVALID_DATA|IO)$/),
      message: expect.stringMatching(message instanceof RegExp ? message : new RegExp(message)),
    });
  };

  it('name the line that is not JSON', async () => {
    const file = writeLines([rlRow('a'), '', '{"prompt": ']);
    await expectError(file, `${file}:3: not valid JSON`);
    const list = writeLines([rlRow('a'), '[1]']);
    await expectError(list, /:2: expected a JSON object, got \[1\]/);
  });

  it.each(['images', 'videos', 'audios'])(
    'with %s are refused, because the model would not see them',
    async (name) => {
      const empty = { ...rlRow('a'), [name]: [] };
      const file = writeLines([
        rlRow('a'),
        empty,
        { ...rlRow('b'), [name]: [{ bytes: 'aa' }, { bytes: 'bb' }] },
      ]);
      await expect(open(file)).rejects.toMatchObject({
        code: 'INVALID_DATA',
        message: expect.stringMatching(
          new RegExp(
            `data\\.jsonl:3: expected the column '${name}' to be empty, got 2: the model reads text only`,
          ),
        ),
      });
      expect((await open(writeLines([rlRow('a'), empty, { ...rlRow('b'), [name]: null }]))).length).toBe(3);
    },
  );

  it('with images in a parquet file are refused where they are met', async () => {
    const strings = (name: string, data: string[]) => ({ name, data, type: 'STRING' as const });
    const parquet = (images: string[]): string => {
      const file = join(temporaryDirectory(), 'data.parquet');
      const rows = images.map((_, i) => `p${i}`);
      const columnData = [
        strings(
          'data_source',
          rows.map(() => 'sums'),
        ),
        strings('prompt', rows),
        { name: 'reward_model', data: rows.map(() => ({ ground_truth: '4' })), type: 'JSON' as const },
        strings('images', images),
      ];
      writeFileSync(file, Buffer.from(parquetWriteBuffer({ columnData })));
      return file;
    };
    await expect(open(parquet(['a.png', '']))).rejects.toThrow(/row 0: .*'images' to be empty/);
    const later = await open(parquet(['', 'a.png']));
    expect(await text(later, 0)).toBe('<bos>p0');
    await expect(later.sample(1)).rejects.toThrow(/row 1: .*'images' to be empty/);
  });

  it('name the column that is missing and those that are there', async () => {
    await expectError(writeLines([rlRow('a')]), /no column 'question'; the columns are data_source, prompt/, {
      promptKey: 'question',
    });
    await expectError(
      writeParquet(['a']),
      /row 0: no column 'question'; the columns are data_source, prompt.*: data\.prompt_key says which one it is$/,
      {
        promptKey: 'question',
      },
    );
    await expectError(writeLines([{ prompt: 'a' }]), /no column 'reward_model'; the columns are prompt$/);
  });

  it.each([
    [rlRow(5), /expected a prompt string or a list of \{role, content\}, got 5/],
    [rlRow([]), /expected a prompt string or a list/],
    [rlRow(null), /expected a prompt string or a list of \{role, content\}, got null/],
    [
      rlRow([{ role: 'user' }]),
      /expected a prompt string or a list of \{role, content\}, got \[\{"role":"user"\}/,
    ],
    [rlRow([{ role: 'user', content: null }]), /expected a prompt string or a list/],
    [rlRow([{ role: 'user', content: 5 }]), /expected a prompt string or a list/],
    [rlRow([{ role: 'user', content: [5] }]), /expected a prompt string or a list/],
    [rlRow([{ role: 'user', content: [null] }]), /expected a prompt string or a list/],
    [rlRow([{ role: 'user', content: [['a']] }]), /expected a prompt string or a list/],
    [{ ...rlRow('a'), data_source: null }, /expected data_source to be the name of a data source, got null/],
    [
      { ...rlRow('a'), data_source: ['x'] },
      /expected data_source to be the name of a data source, got \["x"\]/,
    ],
    [{ ...rlRow('a'), extra_info: 'x' }, /expected extra_info to be an object, got "x"/],
    [
      { ...rlRow('a'), reward_model: '4' },
      /expected reward_model to be an object with ground_truth, got "4"/,
    ],
  ])('name the value that is wrong: %j', async (row, message) => {
    await expectError(writeLines([row]), message);
  });

  it('a message may call tools instead of saying something', async () => {
    const calls = [{ type: 'function', function: { name: 'f', arguments: {} } }];
    const called = [...chat('a'), { role: 'assistant', content: null, tool_calls: calls }];
    // The template sees no content where it is null.
    const dataset = await open(writeLines([rlRow([...called, { role: 'tool', content: '1' }])]));
    expect(await text(dataset, 0)).toBe('<|user|>a<eos><|assistant|><eos><|tool|>1<eos><|assistant|>');
    const none = [...chat('a'), { role: 'assistant', content: null, tool_calls: [] }];
    await expectError(writeLines([rlRow(none)]), /expected a prompt string or a list/);
  });

  it.each(['data.jsonl', 'data.json'])('without rows are empty: %s', async (name) => {
    const file = join(temporaryDirectory(), name);
    writeFileSync(file, name.endsWith('.json') ? '[]' : '\n');
    await expectError(file, /the data set is empty/);
  });

  it('that do not exist, have another type or are damaged are named', async () => {
    await expectError('no/such.jsonl', /cannot read no\/such\.jsonl \(relative to \/.*\): /);
    await expectError('no/such.parquet', /cannot read no\/such\.parquet \(relative to \/.*\): /);
    await expectError('data.csv', /data\.csv: expected a \.parquet, \.jsonl or \.json file/);
    const damaged = join(temporaryDirectory(), 'x.parquet');
    writeFileSync(damaged, 'PAR1 nonsense');
    await expectError(damaged, /x\.parquet is not a usable parquet file/);
    writeFileSync(damaged, 'PAR1');
    await expectError(
      damaged,
      /x\.parquet is not a usable parquet file: expected at least 12 bytes, got 4: it is cut short/,
    );
  });
});

test('a row that the chat template, or the tokenizer, does not take is named', async () => {
  const template =
    "{% for m in messages %}{% if m['role'] != 'user' %}{{ raise_exception('only users') }}{% endif %}{{ m['content'] }}{% endfor %}";
  const strict = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
  const data = writeLines([rlRow(chat('1')), rlRow([{ role: 'system', content: '2' }]), rlRow('3')]);
  const dataset = await RlDataset.open([data], strict, OPTIONS);
  await expect(dataset.sample(1)).rejects.toThrow(
    `[data] ${data}:2: ${strict.source.directory}: the chat template failed: only users`,
  );
  const encode = jest.spyOn(strict, 'encode').mockReturnValue(new Int32Array(0));
  await expect(dataset.sample(2)).rejects.toThrow(
    `[data] ${data}:3: the prompt has no tokens: the tokenizer knows nothing of "3"`,
  );
  encode.mockImplementation(() => {
    throw new TroupeError('INVALID_MODEL', '[data] the tokenizer failed');
  });
  await expect(dataset.sample(2)).rejects.toMatchObject({
    code: 'INVALID_MODEL',
    message: `[data] ${data}:3: the tokenizer failed`,
  });
});
