import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { imageBytes } from '../../ts/data/images/image_source';
import { writeRows } from '../../ts/data/python/dataset_process';
import { RowSpool } from '../../ts/data/python/row_spool';
import { SampleSource } from '../../ts/data/reading/sample_source';
import { RlDataset, type RlDatasetOptions, type RlSample } from '../../ts/data/rl_dataset';
import { RowFiles } from '../../ts/data/row_file';
import { Tokenizer } from '../../ts/data/tokenizer';
import { until } from '../helpers/counting_servers';
import { allGone } from '../helpers/e2e_process';
import { tokenizerDirectory } from '../unit/data/fake_tokenizer';

// Data set classes in Python, with the python3 of this machine, whatever they do there.

const directory = mkdtempSync(join(tmpdir(), 'python-dataset-'));
const write = (name: string, text: string): string => {
  const path = join(directory, name);
  writeFileSync(path, text);
  return path;
};
// A copy: Python writes beside what it imports.
const CLASSES = write(
  'python_dataset.py',
  readFileSync(join(__dirname, '..', 'fixtures', 'python_dataset.py'), 'utf8'),
);
const python = 'python3';

const spools: RowSpool[] = [];
afterEach(() => {
  for (const spool of spools.splice(0)) spool.close();
});

interface Asked {
  name?: string;
  path?: string;
  python?: string;
  config?: object;
  files?: string[];
  timeout?: number;
  images?: string;
}

async function made({ name = 'Given', path = CLASSES, config = {}, files = [], ...asked }: Asked) {
  const spool = RowSpool.create();
  spools.push(spool);
  const [set] = await writeRows(
    { path, name, python: asked.python ?? python },
    {
      config: { prompt_key: 'prompt', ...config },
      tokenizer: directory,
      chat_template: null,
      reads_images: false,
      columns: { prompt: 'prompt', source: 'data_source', images: asked.images ?? 'images' },
      timeout: asked.timeout ?? 60,
    },
    [{ what: 'training', files, max_samples: -1 }],
    [spool],
  );
  const rows = await RowFiles.open([{ path: spool.path, name: `${name}, training` }]);
  return { set, spool, rows };
}

/** The rows that Python makes of these expressions. */
async function rowsOf(expressions: string[], more: Asked = {}) {
  const { rows } = await made({ config: { rows: expressions }, ...more });
  return await Promise.all(
    expressions.map((_, i) => {
      const { file, row } = rows.locate(i);
      return file.row(row);
    }),
  );
}

const ROW = { prompt: '1+2=', data_source: 'sums', reward_model: { ground_truth: '3' }, extra_info: {} };

describe('rows', () => {
  it('have the columns that the trainer reads', async () => {
    expect(await rowsOf(['row(ability="MATH", index=3, agent_name="tool_agent")'])).toEqual([ROW]);
  });

  it.each([
    ['scalars and arrays', '{"a": Scalar(2.5), "b": [Scalar([1, Scalar(2)])]}', { a: 2.5, b: [[1, 2]] }],
    [
      'tuples, and mappings that are no dicts',
      '{"a": (1, 2), "b": OrderedDict(c=None)}',
      { a: [1, 2], b: { c: null } },
    ],
    ['integers of any size', '{"a": 2**80, "b": -2**53 - 1}', { a: 2n ** 80n, b: -(2n ** 53n) - 1n }],
    ['halves of characters', '{"a": "\\ud83d", "ä": True}', { a: '\ud83d', ä: true }],
    ['nothing', 'None', {}],
  ])('%s become JSON', async (_, value, expected) => {
    expect(await rowsOf([`row(extra_info=${value})`])).toEqual([{ ...ROW, extra_info: expected }]);
  });

  it('have what tools are given in extra_info', async () => {
    const tools = { t: { create_kwargs: { a: 1 } } };
    const given = `row(extra_info={"index": 4, "tools_kwargs": {}}, tools_kwargs=${JSON.stringify(tools)})`;
    expect(await rowsOf([given, 'row(extra_info={"index": 5}, tools_kwargs={})'])).toEqual([
      { ...ROW, extra_info: { index: 4, tools_kwargs: tools } },
      { ...ROW, extra_info: { index: 5 } },
    ]);
  });

  it('have raw_prompt as their prompt, also from an array', async () => {
    const messages = '[{"role": "user", "content": "hi"}]';
    const expected = { ...ROW, prompt: [{ role: 'user', content: 'hi' }] };
    expect(
      await rowsOf([`row(raw_prompt=${messages}, input_ids=[1])`, `row(raw_prompt=Scalar(${messages}))`]),
    ).toEqual([expected, expected]);
  });

  it('have the images of their messages in a column', async () => {
    const parts = [
      '{"type": "image", "image": "a.png"}',
      '{"type": "text", "text": "and"}',
      '{"type": "image", "bytes": b"abc", "path": None}',
      '{"type": "image", "image": Picture(), "min_pixels": 4}',
      '{"type": "image_url", "image_url": {"url": "https://x/y.png"}}',
    ];
    const [pictured, column] = await rowsOf(
      [
        `row(raw_prompt=[{"role": "user", "content": [${parts.join(', ')}]}])`,
        'row(pictures=[{"bytes": b"abc"}, "/b.png"], raw_prompt=[{"role": "user", "content": "<image><image>"}])',
      ],
      { images: 'pictures' },
    );
    const bytes = (text: string): string => `data:image;base64,${Buffer.from(text).toString('base64')}`;
    expect(pictured).toEqual({
      ...ROW,
      prompt: [
        {
          role: 'user',
          content: [
            { type: 'image' },
            { type: 'text', text: 'and' },
            { type: 'image' },
            { type: 'image' },
            { type: 'image' },
          ],
        },
      ],
      pictures: [
        { image: join(process.cwd(), 'a.png') },
        { image: bytes('abc') },
        { image: bytes('png'), min_pixels: 4 },
        { image: 'https://x/y.png' },
      ],
    });
    expect(column?.['pictures']).toEqual([{ image: bytes('abc') }, '/b.png']);
    const read = await imageBytes((column?.['pictures'] as unknown[])[0], '', 'row 0');
    expect(Buffer.from(read).toString()).toBe('abc');
  });

  it('are built by verl’s class as in verl', async () => {
    const rows = write(
      'rows.jsonl',
      [
        {
          prompt: [{ role: 'user', content: 'see <image>, <image>' }],
          images: ['/a.png', { path: '/b.png' }],
        },
        { prompt: 'no images', images: [] },
      ]
        .map((one) => JSON.stringify({ ...ROW, ...one }))
        .join('\n'),
    );
    const { rows: found } = await made({ name: 'Lines', files: [rows] });
    const [{ file }] = [found.locate(0)];
    const text = (value: string) => ({ type: 'text', text: value });
    expect(await file.row(0)).toEqual({
      ...ROW,
      prompt: [{ role: 'user', content: [text('see '), { type: 'image' }, text(', '), { type: 'image' }] }],
      images: [{ image: '/a.png' }, { image: '/b.png' }],
    });
    expect(await file.row(1)).toEqual({ ...ROW, prompt: 'no images' });
  });

  it('are held in the memory of neither process', async () => {
    const count = 100_000;
    const before = process.memoryUsage().rss;
    const { set, rows, spool } = await made({ name: 'Many', config: { count } });
    expect(set?.rows).toBe(count);
    expect(spool.bytes).toBeGreaterThan(45e6);
    expect(rows.length).toBe(count);
    const { file, row } = rows.locate(count - 1);
    const last = await file.row(row);
    expect(last).toMatchObject({ prompt: [{ content: expect.stringMatching(/^99999 and/) }] });
    expect((last['extra_info'] as { kilobytes: number }).kilobytes).toBeLessThan(60e3);
    expect(process.memoryUsage().rss - before).toBeLessThan(45e6);

    // In threads, as data of this size are read.
    const options: RlDatasetOptions = {
      promptKey: 'prompt',
      dataSourceKey: 'data_source',
      maxPromptLength: 1000,
      filterOverlongPrompts: false,
      truncation: 'error',
      maxSamples: -1,
      shuffle: false,
      seed: 1,
    };
    const paths = [{ path: spool.path, name: 'Many, training' }];
    const tokenizer = Tokenizer.load(tokenizerDirectory());
    const dataset = await RlDataset.open(paths, tokenizer, options);
    const source = SampleSource.of(dataset, { kind: 'rl', paths, tokenizer: tokenizer.source, options });
    expect(source.threads).not.toBeNull();
    const read = await source.threads?.read(Int32Array.of(99_999, 5));
    const tokens = [99_999, 5].map(async (i) => [...((await dataset.sample(i)) as RlSample).tokens]);
    expect([0, 1].map((place) => [...(read?.at(place) as RlSample).tokens])).toEqual(
      await Promise.all(tokens),
    );
    await source.close();
  });
});

describe('what is wrong is told', () => {
  it.each([
    [
      'a number',
      '{"b": [1, float("nan")]}',
      /training row 1: extra_info\['b'\]\[1\] is nan, which JSON has no word for: expected a finite number, or None$/,
    ],
    [
      'a type',
      '{"a": datetime.date(2020, 1, 1)}',
      /training row 1: extra_info\['a'\] is of the type date, which JSON has no word for: expected text, numbers/,
    ],
    ['bytes', '{"a": b"x"}', /extra_info\['a'\] is of the type bytes/],
    ['a set', '{1}', /extra_info is of the type set/],
    ['a key', '{"a": {3: 4}}', /extra_info\['a'\] has the key 3: expected texts as keys/],
    ['a circle', '(lambda d: d.update(d=d) or d)({})', /extra_info is nested more than 100 times/],
  ])('that JSON has no word for: %s', async (_, value, expected) => {
    const failed = rowsOf(['row()', `row(extra_info=${value})`]);
    await expect(failed).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(expected),
    });
    await expect(failed).rejects.toThrow(`[data] data.custom_cls: Given of ${CLASSES}: training row 1`);
  });

  it.each([
    ['no dict', '[]', /row 0: expected a dict, got list/],
    ['no prompt', '{"a": 1}', /row 0: there is neither 'raw_prompt' nor 'prompt'; its keys are a$/],
    ['no source', '{"prompt": "", "b": 1}', /row 0: there is no 'data_source'; its keys are prompt, b$/],
    [
      'tokens',
      'row(input_ids=[1, 2])',
      /has its prompt as token ids \(input_ids\), and no raw_prompt: prompts are tokenized by the trainer/,
    ],
    [
      'a video',
      'row(raw_prompt=[{"role": "user", "content": [{"type": "video", "video": "v"}]}])',
      /raw_prompt\[0\]\['content'\]\[0\] is of the type video/,
    ],
    ['videos', 'row(videos=["v"])', /'videos' is not empty/],
    ['older images', 'row(multi_modal_data={"image": [1]})', /multi_modal_data is of older versions/],
    ['no image', 'row(images=[3])', /images\[0\] is no image: expected bytes/],
    [
      'an exception',
      'row(a=[][1])',
      /row 0: IndexError: list index out of range, at <string>:1 in <module>: , from .*python_dataset\.py:\d+ in __getitem__: return eval/,
    ],
    ['an exit', 'sys.exit(3)', /row 0: SystemExit: 3, at .*, from .*python_dataset\.py:\d+ in __getitem__/],
    [
      'the tokenizer',
      'self.tokenizer.encode("a")',
      /row 0: ImportError: the class asks for the tokenizer of .*, which transformers reads in .*python.*: (ModuleNotFoundError: No module named 'transformers'|OSError|ValueError)/,
    ],
  ])('of a row: %s', async (_, value, expected) => {
    await expect(rowsOf([value])).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(expected),
    });
  });

  it.each<[string, Asked, RegExp]>([
    [
      'an interpreter',
      { python: '/nowhere/python' },
      /^data\.custom_cls\.python: could not start \/nowhere\/python/,
    ],
    [
      'a program that is no Python',
      { python: 'true' },
      /^data\.custom_cls\.python: true ended before it began: expected Python 3\.8/,
    ],
    [
      'a class',
      { name: 'Missing' },
      /^data\.custom_cls\.name: .*python_dataset\.py has no class 'Missing'; it has: OtherTool, Lines, /,
    ],
    ['a function', { name: 'not_a_class' }, /has no class 'not_a_class'/],
    [
      'a package',
      { path: write('bad.py', 'import no_such_package\n') },
      /^data\.custom_cls\.path: .*python.* could not load .*bad\.py: ModuleNotFoundError: No module named 'no_such_package', at .*bad\.py:1/,
    ],
    [
      'an exit',
      { path: write('exits.py', 'raise SystemExit(0)\n') },
      /^data\.custom_cls\.path: .* could not load .*exits\.py: SystemExit: 0/,
    ],
    ['syntax', { path: write('syntax.py', 'class A(:\n') }, /could not load .*syntax\.py: SyntaxError: /],
    [
      'a stream',
      { name: 'Stream' },
      /^data\.custom_cls\.name: Stream has no __len__: expected rows by number/,
    ],
    [
      'data that change',
      { name: 'Changing', config: { rows: [] } },
      /^data\.custom_cls\.name: Changing has on_batch_end/,
    ],
  ])('of the configuration: %s', async (_, asked, expected) => {
    await expect(made(asked)).rejects.toMatchObject({
      code: 'INVALID_CONFIG',
      message: expect.stringMatching(expected),
    });
  });

  it.each<[string, Asked, RegExp]>([
    [
      'its making',
      { name: 'Broken' },
      /while the training set was made: FileNotFoundError: .*\/nowhere\/at\/all.*, at .*python_dataset\.py:\d+ in __init__/,
    ],
    [
      'its files',
      { name: 'Lines', files: ['/nowhere.jsonl'] },
      /while the training set was made: FileNotFoundError: .*in _read_files_and_tokenize/,
    ],
    [
      'what verl has',
      { name: 'OtherTool' },
      /ImportError: verl\.tools\.sandbox_fusion_tools\.SandboxFusionTool is verl's, and verl is not installed: install it in .*python/,
    ],
    ['no rows', { config: { rows: [] } }, /^\[data\] Given, training: the data set is empty$/],
    [
      'the end of its process',
      { config: { rows: ['os._exit(0)'] } },
      /its process ended with exit code 0 while (the training set was made|training row 0 of 1 was made|it was started)/,
    ],
    [
      'its death',
      { config: { rows: ['time.sleep(1) or os.kill(os.getpid(), 9)'] } },
      /its process ended with SIGKILL while training row 0 of 1 was made/,
    ],
    [
      'its sockets',
      { config: { rows: ['os.write(4, b"x\\n") and time.sleep(60)'] } },
      /it wrote to the socket of its process/,
    ],
    [
      'its file',
      { config: { rows: ['os.write(5, b"x\\n") and row()'] } },
      /expected \d+ bytes of training rows, found \d+: it wrote to their file/,
    ],
    [
      'a row that does not come',
      { timeout: 1, config: { rows: ['row()', 'time.sleep(100)'] } },
      /nothing came within data\.custom_cls\.timeout, 1 s, while training row 1 of 2 was made, at <string>:1 in <module>.*, from .*python_dataset\.py:\d+ in __getitem__/,
    ],
    [
      'a module that does not load',
      { timeout: 1, path: write('slow.py', 'import time\ntime.sleep(100)\n') },
      /nothing came within .* 1 s, while the module was loaded, at .*slow\.py:2 in <module>: time\.sleep/,
    ],
    [
      'Python that does not go on',
      { timeout: 1, name: 'Backtracking', config: { rows: ['0'] } },
      /nothing came within data\.custom_cls\.timeout, 1 s, while .*, and Python itself did not go on/,
    ],
  ])('%s', async (_, asked, expected) => {
    await expect(made(asked)).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(expected),
    });
  });
});

it('is not held up by what the class leaves behind, and ends it', async () => {
  const file = join(directory, 'left');
  const thread = 'threading.Thread(target=time.sleep, args=(600,)).start()';
  await rowsOf([`leave(${JSON.stringify(file)})`, `${thread} or row()`]);
  expect(await allGone([Number(readFileSync(file, 'utf8'))], 10_000)).toBe(true);
});

it('ends with the process that started it, and leaves no file', async () => {
  const file = join(directory, 'pid');
  const loop = `[open(${JSON.stringify(file)}, "w").write(str(os.getpid())), time.sleep(600)][0]`;
  const script = `
    const { writeRows } = require(${JSON.stringify(join(__dirname, '../../dist/data/python/dataset_process.js'))});
    const { RowSpool } = require(${JSON.stringify(join(__dirname, '../../dist/data/python/row_spool.js'))});
    const spool = RowSpool.create();
    writeRows({ path: ${JSON.stringify(CLASSES)}, name: 'Given', python: 'python3' },
      { config: { rows: [${JSON.stringify(loop)}] }, tokenizer: '', chat_template: null, reads_images: false,
        columns: { prompt: 'prompt', source: 'data_source', images: 'images' }, timeout: 600 },
      [{ what: 'training', files: [], max_samples: -1 }], [spool]);`;
  const temporary = mkdtempSync(join(directory, 'tmp-'));
  const parent = spawn(process.execPath, ['-e', script], {
    stdio: 'inherit',
    env: { ...process.env, TMPDIR: temporary },
  });
  const told = (): string => (existsSync(file) ? readFileSync(file, 'utf8') : '');
  await until('process', () => told() !== '', told);
  parent.kill('SIGKILL');
  await once(parent, 'exit');
  expect(await allGone([Number(readFileSync(file, 'utf8'))], 10_000)).toBe(true);
  expect(readdirSync(temporary)).toEqual([]);
});

// verl's own class, where it is installed.
const verl = process.env['TROUPE_TEST_VERL_PYTHON'];
(verl === undefined ? it.skip : it)('our RLHFDataset gives the rows and has the attributes of verl’s', () => {
  const check = join(__dirname, '..', 'helpers', 'verl_dataset_check.py');
  const { stdout, stderr, status } = spawnSync(verl as string, [check], { encoding: 'utf8' });
  expect({ status, stderr: status === 0 ? '' : stderr }).toEqual({ status: 0, stderr: '' });
  expect(stdout).toMatch(/^\d{3,} rows$/m);
});
