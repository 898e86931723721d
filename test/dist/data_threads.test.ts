// Threads that read and tokenize, against the same data read in place.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { readPromptImages } from '../../ts/batch/prompt_image';
import { type Dataset, samplesOf } from '../../ts/data/dataset';
import { SampleSource } from '../../ts/data/reading/sample_source';
import { SampleThreads } from '../../ts/data/reading/sample_threads';
import { RlDataset, type RlDatasetOptions } from '../../ts/data/rl_dataset';
import { SftDataset, type SftDatasetOptions } from '../../ts/data/sft_dataset';
import { permutation } from '../../ts/data/shuffle';
import { Tokenizer } from '../../ts/data/tokenizer';
import { IMAGES, READING, readFixtures } from '../helpers/vision_model';
import { id, rlRow, temporaryDirectory, tokenizerDirectory, writeLines } from '../unit/data/fake_tokenizer';

const tokenizer = Tokenizer.load(tokenizerDirectory());
const ROWS = 500;

const rlOptions: RlDatasetOptions = {
  promptKey: 'prompt',
  dataSourceKey: 'data_source',
  maxPromptLength: 24,
  filterOverlongPrompts: true,
  truncation: 'error',
  maxSamples: -1,
  shuffle: true,
  seed: 1,
};
const sftOptions: SftDatasetOptions = {
  messagesKey: null,
  promptKey: 'prompt',
  responseKey: 'response',
  toolsKey: null,
  enableThinkingKey: null,
  maxLength: 40,
  truncation: 'error',
  maxSamples: -1,
  shuffle: false,
  seed: 1,
};

/** Prompts of up to 44 characters in 25 row groups. */
function parquet(): string {
  const rows = Array.from({ length: ROWS }, (_, i) => rlRow(`${i} ${'a'.repeat(i % 40)}`, String(i)));
  const names = ['data_source', 'prompt', 'reward_model', 'extra_info'] as const;
  const file = join(temporaryDirectory(), 'rows.parquet');
  const buffer = parquetWriteBuffer({
    columnData: names.map((name) => ({ name, data: rows.map((row) => row[name]) })),
    rowGroupSize: 20,
  });
  writeFileSync(file, Buffer.from(buffer));
  return file;
}

// Objects that v8 makes are of another realm than Jest's.
const plain = (value: unknown): unknown => JSON.parse(JSON.stringify(value));

async function compare<T>(dataset: Dataset<T>, threads: SampleThreads<T>): Promise<void> {
  const order = permutation(dataset.rows.length, 7, 0);
  const inPlace = await samplesOf(dataset, order);
  const read = await threads.read(order);
  expect(plain(Array.from(order, (_, place) => read.at(place)))).toEqual(plain(inPlace));
  // Not only all of them: some, none of a thread's share, one twice.
  for (const some of [Int32Array.of(3, 1, 3), order.subarray(10, 31), Int32Array.of()]) {
    const few = await threads.read(Int32Array.from(some));
    const expected = await samplesOf(dataset, some);
    expect(plain(Array.from(some, (_, place) => few.at(place)))).toEqual(plain(expected));
  }
}

it.each([1, 2, 3])(
  '%d threads give the prompts of parquet and JSONL files as they are in place',
  async (n) => {
    const lines = writeLines(Array.from({ length: 30 }, (_, i) => rlRow(`line ${i}`)));
    const paths = [parquet(), lines];
    for (const maxSamples of [-1, 123]) {
      const options = { ...rlOptions, maxSamples };
      const dataset = await RlDataset.open(paths, tokenizer, options);
      const spec = { kind: 'rl', paths, tokenizer: tokenizer.source, options } as const;
      const threads = new SampleThreads<Awaited<ReturnType<RlDataset['sample']>>>(spec, dataset.rows, n);
      try {
        await compare(dataset, threads);
        expect(plain(await threads.usable())).toEqual(await dataset.usableOf(0, dataset.length));
        expect(dataset.someUsable(await threads.usable())).toBeLessThan(dataset.length);
      } finally {
        await threads.close();
      }
    }
  },
);

it('examples of fine-tuning are those that are made in place, and a bad one is an error in its place', async () => {
  const rows = Array.from({ length: 50 }, (_, i) => ({ prompt: `p${i}`, response: 'r'.repeat(i % 30) }));
  const paths = [writeLines([...rows.slice(1), { prompt: 'too long', response: 'x'.repeat(60) }])];
  const dataset = await SftDataset.open(paths, tokenizer, sftOptions);
  const spec = { kind: 'sft', paths, tokenizer: tokenizer.source, options: sftOptions } as const;
  const threads = new SampleThreads(spec, dataset.rows, 2);
  try {
    const all = await threads.read(Int32Array.from({ length: 50 }, (_, i) => i));
    for (let i = 0; i < 49; i++) expect(plain(all.at(i))).toEqual(plain(await dataset.sample(i)));
    const inPlace = await dataset
      .sample(49)
      .catch((error: unknown) => error as { code: string; message: string });
    expect(() => all.at(49)).toThrow((inPlace as { message: string }).message);
    expect(inPlace).toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringContaining(`${paths[0]}:50`),
    });
  } finally {
    await threads.close();
  }
  await expect(threads.read(Int32Array.of(0))).rejects.toMatchObject({ code: 'IO' });
});

it('few data are read in place, many in threads', async () => {
  const open = async (rows: number) => {
    const paths = [writeLines(Array.from({ length: rows }, (_, i) => rlRow(`${i} ${' '.repeat(900)}`)))];
    const options = { ...rlOptions, maxPromptLength: 2000 };
    const dataset = await RlDataset.open(paths, tokenizer, options);
    return SampleSource.of(dataset, { kind: 'rl', paths, tokenizer: tokenizer.source, options });
  };
  const few = await open(10);
  expect(few.threads).toBeNull();
  expect(await few.all()).toHaveLength(10);
  const many = await open(10_000);
  expect(many.threads).not.toBeNull();
  expect((await many.all()).map(({ tokens }) => tokens.length)).toHaveLength(10_000);
  await many.close();
});

describe.each([
  ['in place', 10],
  ['in threads', 90],
])('prompts with images, %s', (_, rows) => {
  const template =
    "{%- for m in messages -%}{%- for p in m.content -%}{{ 'q' if p.type == 'image' else p.text }}{%- endfor -%}{%- endfor -%}";
  const reader = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
  const files = ['wide.png', 'large.png'];
  const row = (i: number) => ({
    ...rlRow([{ role: 'user', content: i % 3 === 2 ? [{ type: 'text', text: 'a' }] : '<image>' }]),
    images: i % 3 === 2 ? [] : [join(IMAGES, files[i % 3] as string)],
  });

  it('all of them are without pixels, which are read when they are wanted; long ones are left out', async () => {
    const paths = [writeLines(Array.from({ length: rows }, (_, i) => row(i)))];
    const options = {
      ...rlOptions,
      maxPromptLength: 50,
      shuffle: false,
      images: { ...READING, imageToken: id('q') },
    };
    const dataset = await RlDataset.open(paths, reader, options);
    const source = SampleSource.of(dataset, { kind: 'rl', paths, tokenizer: reader.source, options });
    try {
      expect(source.threads === null).toBe(rows < 64);
      const prompts = await source.all();
      const kept = Array.from({ length: rows }, (_, i) => i).filter((i) => i % 3 !== 1);
      expect(prompts).toHaveLength(kept.length);
      const [wide] = await readFixtures(['wide.png']);
      for (const [n, { images = [] }] of prompts.entries())
        expect(images).toEqual((kept[n] as number) % 3 === 2 ? [] : expect.any(Function));
      const read = await readPromptImages(prompts.map(({ images = [] }) => images));
      expect(read.map((images) => images.length)).toEqual(kept.map((i) => (i % 3 === 2 ? 0 : 1)));
      for (const [image] of read)
        if (image !== undefined)
          expect(Buffer.from(image.pixels).equals(wide?.pixels as Uint8Array)).toBe(true);
      // And again: nothing of it is kept.
      expect(await readPromptImages([prompts[0]?.images ?? []])).toEqual([read[0]]);
    } finally {
      await source.close();
    }
  });
});
