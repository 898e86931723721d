import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { imageBytes } from '../../ts/data/images/image_source';
import { SampleSource } from '../../ts/data/reading/sample_source';
import type { ReadSamples } from '../../ts/data/reading/sample_threads';
import { RlDataset, type RlDatasetOptions, type RlSample } from '../../ts/data/rl_dataset';
import { Tokenizer } from '../../ts/data/tokenizer';
import { until } from '../helpers/counting_servers';
import { allGone } from '../helpers/e2e_process';
import { CLASSES, closeSpools, directory, made, rowsOf, write } from '../helpers/python_dataset';
import { tokenizerDirectory } from '../unit/data/fake_tokenizer';

// Data set classes in Python, with the python3 of this machine, whatever they do there.

afterEach(closeSpools);

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
    const [pictured, column = {}] = await rowsOf(
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
    expect(column['pictures']).toEqual([{ image: bytes('abc') }, '/b.png']);
    const read = await imageBytes((column['pictures'] as unknown[])[0], '', 'row 0');
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
    expect((last['extra_info'] as { kilobytes: number }).kilobytes).toBeLessThan(45e3);
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
    const read = (await source.threads?.read(Int32Array.of(99_999, 5))) as ReadSamples<RlSample>;
    const tokens = [99_999, 5].map(async (i) => [...((await dataset.sample(i)) as RlSample).tokens]);
    expect([0, 1].map((place) => [...(read.at(place) as RlSample).tokens])).toEqual(
      await Promise.all(tokens),
    );
    await source.close();
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
(verl === undefined ? it.skip : it)(
  'our RLHFDataset gives the rows and has the attributes of verl’s',
  () => {
    const check = join(__dirname, '..', 'helpers', 'verl_dataset_check.py');
    const { stdout, stderr, status } = spawnSync(verl as string, [check], { encoding: 'utf8' });
    expect({ status, stderr: status === 0 ? '' : stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toMatch(/^\d{3,} rows$/m);
  },
  600_000,
);
