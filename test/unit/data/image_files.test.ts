import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import sharp from 'sharp';
import { decodeImage, imageSize } from '../../../ts/data/images/decode';
import { imageBytes } from '../../../ts/data/images/image_source';
import { IMAGES } from '../../helpers/vision_model';
import { temporaryDirectory } from './fake_tokenizer';

// What Pillow reads in files of many kinds (make_kinds.py).
const kinds = JSON.parse(readFileSync(join(IMAGES, 'kinds.json'), 'utf8')) as {
  kind: string;
  file: string;
  height: number;
  width: number;
  pixels: string;
}[];

test.each(kinds)('$kind: the pixels of Pillow', async ({ file, height, width, pixels }) => {
  const bytes = Buffer.from(file, 'base64');
  expect(await imageSize(bytes, 'row')).toEqual({ height, width });
  const image = await decodeImage(bytes, 'row');
  expect([image.height, image.width]).toEqual([height, width]);
  const expected = Buffer.from(pixels, 'base64');
  expect(image.pixels).toHaveLength(expected.length);
  const jpeg = bytes[0] === 0xff;
  const differences = image.pixels.map((byte, i) => Math.abs(byte - (expected[i] as number)));
  // Decoders of JPEG may differ by the last bit.
  expect(Math.max(...differences)).toBeLessThanOrEqual(jpeg ? 1 : 0);
});

test('of sixteen bits of grey the higher eight are taken', async () => {
  const grey = Uint16Array.from([0, 255, 256, 30_000, 65_535]);
  const png = await sharp(grey, { raw: { width: 5, height: 1, channels: 1 } })
    .toColourspace('grey16')
    .png()
    .toBuffer();
  const { pixels } = await decodeImage(png, 'row');
  expect([...pixels].filter((_, i) => i % 3 === 0)).toEqual(Array.from(grey, (value) => value >> 8));
});

const png = readFileSync(join(IMAGES, 'wide.png'));
const jpeg = readFileSync(join(IMAGES, 'tall.jpg'));
const drawing = Buffer.from(
  '<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"><rect width="8" height="8"/></svg>',
);
/** The header of another size: its checksum is wrong then, too, but the size is looked at first. */
function sized(width: number, height: number): Buffer {
  const other = Buffer.from(png);
  other.writeUInt32BE(width, 16);
  other.writeUInt32BE(height, 20);
  return other;
}

test.each<[string, Buffer]>([
  ['nothing', Buffer.alloc(0)],
  ['a PNG that is cut short', png.subarray(0, png.length / 2)],
  ['a JPEG that is cut short', jpeg.subarray(0, jpeg.length / 2)],
  ['the beginning of a PNG', png.subarray(0, 20)],
  ['no pixels', sized(0, 5)],
  ['more pixels than any image has', sized(2 ** 14, 2 ** 14)],
  ['a drawing, which is a program', drawing],
  ['a document', Buffer.from('%PDF-1.4')],
])('%s is refused', async (_, bytes) => {
  const message =
    /^\[data\] file:3, image 0: expected the bytes of a PNG, JPEG, .* of at most 134217728 pixels, got \d+ bytes that cannot be read: ./;
  await expect(decodeImage(bytes, 'file:3, image 0')).rejects.toThrow(message);
});

describe('where the bytes are', () => {
  const directory = temporaryDirectory();
  const rows = join(directory, 'rows.jsonl');
  copyFileSync(join(IMAGES, 'wide.png'), join(directory, 'a b.png'));
  mkdirSync(join(directory, 'folder'));
  execFileSync('mkfifo', [join(directory, 'fifo')]);
  const found = (value: unknown): Promise<Uint8Array> => imageBytes(value, rows, 'rows.jsonl:1, image 0');

  test.each<[string, unknown]>([
    ['bytes', new Uint8Array(png)],
    ['a struct of bytes', { bytes: new Uint8Array(png), path: 'not there.png' }],
    ['a struct without bytes', { bytes: null, path: 'a b.png' }],
    ['sizes that are null', { image: 'a b.png', min_pixels: null, max_pixels: null }],
    ['an address of a file', `FILE://${directory}/a%20b.png`],
    ['an address with the bytes', `DATA:image/png;charset=x;BASE64,${png.toString('base64')}`],
  ])('%s', async (_, value) => {
    expect(Buffer.from(await found(value)).equals(png)).toBe(true);
  });

  test.each<[string, unknown, RegExp]>([
    ['a FIFO', 'fifo', /cannot read the image "fifo": .*fifo: expected a file, but it is a FIFO/],
    ['a device', '/dev/zero', /cannot read the image "\/dev\/zero": .*a device or socket/],
    ['a directory', 'folder', /cannot read the image "folder": .*a directory/],
    ['no file', 'none.png', /cannot read the image "none.png": .*no such file/],
    ['a zero in a path', 'a\0b.png', /cannot read the image .*null bytes/],
    ['an address on a host', 'file://images/a.png', /cannot read the image "file:\/\/images\/a.png": .*host/],
    ['pixels of its own', { image: 'a b.png', max_pixels: 50176 }, /'max_pixels'.*data\.mm_processor_kwargs/],
    ['a size of its own', { path: 'a b.png', resized_height: 280 }, /'resized_height'/],
    ['a data: address in words', 'data:text/plain,hello', /expected a data: address in base64/],
    [
      'a struct of nothing',
      { bytes: null, path: null },
      /expected \{bytes, path\}, a path or a data: address/,
    ],
  ])('%s is refused', async (_, value, message) => {
    await expect(found(value)).rejects.toThrow(message);
  });
});
