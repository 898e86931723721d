import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parquetWriteBuffer } from 'hyparquet-writer';
import sharp from 'sharp';
import { resizeBicubic } from '../../../ts/data/images/bicubic';
import { smartResize } from '../../../ts/data/images/smart_resize';
import { readImages } from '../../../ts/data/read_images';
import { RlDataset, type RlDatasetOptions } from '../../../ts/data/rl_dataset';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { readImageProcessor } from '../../../ts/model/image_processor';
import { floats, integers, readSafetensors } from '../../helpers/safetensors';
import {
  GLM_SIZES,
  IMAGES,
  READING,
  readFixtures,
  SIZES,
  VISION_MODEL,
  visionModel,
} from '../../helpers/vision_model';
import { id, rlRow, temporaryDirectory, tokenizerDirectory, writeLines } from './fake_tokenizer';

const expected = readSafetensors(join(IMAGES, 'images.safetensors'));

/** The bytes that transformers has turned into the numbers of patches, row by row. */
function pixelsOf(name: string): { height: number; width: number; pixels: Uint8Array } {
  const [, rows, columns] = Array.from(integers(expected, `${name}.grid`), Number) as [
    number,
    number,
    number,
  ];
  const values = floats(expected, `${name}.pixel_values`);
  const { patchSize: P, mergeSize: M, mean, std } = READING;
  const [height, width] = [rows * P, columns * P];
  const pixels = new Uint8Array(height * width * 3);
  for (let patch = 0; patch < rows * columns; patch++) {
    const [block, inside] = [Math.floor(patch / (M * M)), patch % (M * M)];
    const across = columns / M;
    const top = (Math.floor(block / across) * M + Math.floor(inside / M)) * P;
    const left = ((block % across) * M + (inside % M)) * P;
    for (let c = 0; c < 3; c++)
      for (let y = 0; y < P; y++)
        for (let x = 0; x < P; x++) {
          // Both frames of a patch are the image.
          const value = values[((patch * 3 + c) * 2 * P + y) * P + x] as number;
          pixels[((top + y) * width + left + x) * 3 + c] = Math.round(
            (value * (std[c] as number) + (mean[c] as number)) * 255,
          );
        }
  }
  return { height, width, pixels };
}

test.each([
  ['wide.png', 0],
  ['large.png', 0],
  ['grey.png', 0],
  ['clear.png', 0],
  // Decoders of JPEG may differ by the last bit.
  ['tall.jpg', 1],
])('%s is read as transformers reads it, within %i of a byte', async (name, bound) => {
  const [image] = await readFixtures([name]);
  const { height, width, pixels } = pixelsOf(name);
  expect([image?.height, image?.width]).toEqual([height, width]);
  const differences = Array.from(pixels, (byte, i) => Math.abs(byte - (image?.pixels[i] as number)));
  expect(Math.max(...differences)).toBeLessThanOrEqual(bound);
});

test('scripts read files and bytes as a data set does', async () => {
  const [file, bytes] = [join(IMAGES, 'wide.png'), readFileSync(join(IMAGES, 'clear.png'))];
  expect(await readImages(VISION_MODEL, [file, bytes])).toEqual(
    await readFixtures(['wide.png', 'clear.png']),
  );
  await expect(readImages(VISION_MODEL, [new Uint8Array(3)])).rejects.toThrow(/readImages, image 0/);
});

test('sizes are those of smart_resize', () => {
  for (const [height, width, minPixels, maxPixels, ...size] of SIZES as [number, number, number, number][]) {
    const processor = { ...READING, patchSize: 16, minPixels, maxPixels };
    expect([height, width, smartResize(height, width, processor)]).toEqual([height, width, size]);
  }
  expect(smartResize(1000, 4, READING)).toBeNull();
});

test('and those of GLM-4.1V, whose limits are of two frames and whose small images are enlarged first', () => {
  const processor = readImageProcessor(visionModel('glm4v').options.model);
  expect({ ...processor, imageToken: READING.imageToken }).toEqual({ ...READING, enlarges: true });
  for (const [height, width, least, most, size] of GLM_SIZES) {
    const limits = { patchSize: 14, minPixels: least / 2, maxPixels: most / 2 };
    expect([height, width, smartResize(height, width, { ...processor, ...limits })]).toEqual([
      height,
      width,
      size,
    ]);
  }
});

test('a size that is there already changes nothing', () => {
  const pixels = Uint8Array.from({ length: 5 * 7 * 3 }, (_, i) => (i * 37) % 256);
  expect(resizeBicubic(pixels, 5, 7, 5, 7)).toEqual(pixels);
});

describe('rows with images', () => {
  // A letter stands for an image, as <|image_pad|> does in Qwen3-VL.
  const IMAGE = 'q';
  const template =
    "{%- for m in messages -%}{%- if m.content is string -%}{{ m.content }}{%- else -%}{%- for p in m.content -%}{{ 'q' if p.type == 'image' else p.text }}{%- endfor -%}{%- endif -%}{%- endfor -%}";
  const tokenizer = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
  const images = { ...READING, imageToken: id(IMAGE) };
  const open = (file: string, options: Partial<RlDatasetOptions> = {}) =>
    RlDataset.open([file], tokenizer, {
      promptKey: 'prompt',
      dataSourceKey: 'data_source',
      maxPromptLength: 1000,
      filterOverlongPrompts: false,
      truncation: 'error',
      maxSamples: -1,
      shuffle: false,
      seed: 1,
      images,
      ...options,
    });
  const ask = (content: unknown, own: unknown[]) => ({
    ...rlRow(''),
    prompt: [{ role: 'user', content }],
    images: own,
  });
  const bytes = (name: string): Buffer => readFileSync(join(IMAGES, name));
  /** Tokens of the image files of the fixtures. */
  const tokensOf = (name: string): number => pixelsOf(name).pixels.length / 3 / 64;

  test.each([
    ['a path from the directory of the file', () => 'wide.png'],
    ['a path by a key', () => ({ path: 'wide.png' })],
    ['an address of a file', () => `file://${join(IMAGES, 'wide.png')}`],
    ['an address with the bytes', () => `data:image/png;base64,${bytes('wide.png').toString('base64')}`],
  ])('%s', async (_, value) => {
    const file = writeLines([ask('a<image>b', [value()])]);
    copyFileSync(join(IMAGES, 'wide.png'), join(file, '..', 'wide.png'));
    const dataset = await open(file);
    const sample = await dataset.sample(0);
    const count = tokensOf('wide.png');
    expect([...(sample?.tokens ?? [])]).toEqual([id('a'), ...new Array(count).fill(id(IMAGE)), id('b')]);
    expect(sample?.images).toEqual(await readFixtures(['wide.png']));
  });

  test('structs of bytes and path in a parquet file, several in a row, and rows without any', async () => {
    const file = join(temporaryDirectory(), 'data.parquet');
    const text = (name: string) =>
      ({ name, type: 'BYTE_ARRAY', converted_type: 'UTF8', repetition_type: 'OPTIONAL' }) as const;
    const group = (name: string, num_children: number) =>
      ({ name, num_children, repetition_type: 'OPTIONAL' }) as const;
    const list = { name: 'list', num_children: 1, repetition_type: 'REPEATED' } as const;
    const chat = (content: string) => [{ role: 'user', content }];
    const stored = (name: string) => ({ bytes: new Uint8Array(bytes(name)), path: name });
    const buffer = parquetWriteBuffer({
      schema: [
        { name: 'root', num_children: 4 },
        text('data_source'),
        { ...group('prompt', 1), converted_type: 'LIST' },
        list,
        group('element', 2),
        text('content'),
        text('role'),
        group('reward_model', 1),
        text('ground_truth'),
        { ...group('images', 1), converted_type: 'LIST' },
        list,
        group('element', 2),
        { name: 'bytes', type: 'BYTE_ARRAY', repetition_type: 'OPTIONAL' },
        text('path'),
      ],
      columnData: [
        { name: 'data_source', data: ['s', 's'] },
        { name: 'prompt', data: [chat('<image>a<image>'), chat('b')] },
        { name: 'reward_model', data: [{ ground_truth: '1' }, { ground_truth: '2' }] },
        { name: 'images', data: [[stored('wide.png'), stored('clear.png')], []] },
      ],
    });
    writeFileSync(file, Buffer.from(buffer));
    const dataset = await open(file);
    const sample = await dataset.sample(0);
    expect(sample?.images).toEqual(await readFixtures(['wide.png', 'clear.png']));
    expect(sample?.tokens.length).toBe(1 + tokensOf('wide.png') + tokensOf('clear.png'));
    expect((await dataset.sample(1))?.images).toEqual([]);
  });

  test('filter_overlong_prompts counts what images are made of, from their sizes alone', async () => {
    const rows = [ask('<image>', ['wide.png']), ask('<image>', ['large.png'])];
    const file = writeLines(rows);
    for (const name of ['wide.png', 'large.png']) copyFileSync(join(IMAGES, name), join(file, '..', name));
    const limit = tokensOf('wide.png');
    expect(limit).toBeLessThan(tokensOf('large.png'));
    const dataset = await open(file, { filterOverlongPrompts: true, maxPromptLength: limit });
    expect(await dataset.countUsable()).toBe(1);
    expect(await dataset.sample(1)).toBeNull();
    const cut = await open(file, { truncation: 'left', maxPromptLength: limit });
    await expect(cut.sample(1)).rejects.toThrow(/with its images, more than data.max_prompt_length/);
  });

  test('so it does where an agent shows tools with every prompt', async () => {
    const file = writeLines([ask('<image>', ['wide.png']), ask('<image>', ['large.png'])]);
    for (const name of ['wide.png', 'large.png']) copyFileSync(join(IMAGES, name), join(file, '..', name));
    const limit = tokensOf('wide.png');
    const dataset = await open(file, { filterOverlongPrompts: true, maxPromptLength: limit, tools: [] });
    expect(await dataset.countUsable()).toBe(1);
    expect((await dataset.sample(0))?.tokens).toHaveLength(limit);
    expect(await dataset.sample(1)).toBeNull();
  });

  test.each([
    [
      'fewer places than images',
      ask('a', ['wide.png']),
      /a place \(<image>\) for 0 images, and the row has 1/,
    ],
    ['more places than images', ask('<image><image>', ['wide.png']), /for 2 images, and the row has 1/],
    ['a prompt of text', { ...ask('', ['wide.png']), prompt: '<image>' }, /list of \{role, content\}/],
    ['a token for images in a text', ask('q', []), /have 1 with id \d+, which stands for an image/],
    ['a file that is not there', ask('<image>', ['none.png']), /cannot read the image/],
    ['bytes of no image', ask('<image>', ['data:image/png;base64,AAAA']), /expected the bytes of a PNG/],
    ['an address of the network', ask('<image>', ['https://a.b/c.png']), /not fetched from the network/],
    ['a number', ask('<image>', [5]), /expected \{bytes, path\}, a path or a data: address, got 5/],
    ['videos', { ...rlRow('a'), videos: ['a.mp4'] }, /'videos' to be empty.*reads text and images only/],
  ])('%s are refused', async (_, row, message) => {
    await expect(open(writeLines([row]))).rejects.toThrow(message);
  });

  test('an image that is too oblong is refused with its size', async () => {
    const line = await sharp({ create: { width: 402, height: 2, channels: 3, background: 'red' } })
      .png()
      .toBuffer();
    const row = ask('<image>', [`data:image/png;base64,${line.toString('base64')}`]);
    await expect(open(writeLines([row]))).rejects.toThrow(/image 0: 2 x 402 pixels/);
  });
});
