// Bytes of image files as pixels.
import sharp from 'sharp';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import type { PromptImage } from '../../batch/prompt_image';
import { TroupeError } from '../../errors';

/** Of a file: more is a mistake, or an attack on the memory. */
const MOST_PIXELS = 2 ** 27;

/**
 * PNG, JPEG, WebP, GIF (the first frame) or TIFF as red, green and blue. Colour profiles are left out, as Pillow does; what is transparent
 * lies on white, as in qwen_vl_utils.
 * @throws TroupeError INVALID_DATA
 */
export async function decodeImage(bytes: Uint8Array, where: string): Promise<PromptImage> {
  try {
    const { data, info } = await sharp(bytes, { ignoreIcc: true, limitInputPixels: MOST_PIXELS })
      .toColourspace('srgb')
      .raw()
      .toBuffer({ resolveWithObject: true });
    const { height, width, channels } = info;
    return { height, width, pixels: redGreenBlue(data, height * width, channels) };
  } catch (cause) {
    throw unreadable(bytes, where, cause);
  }
}

/** Of the file, without a look at its pixels. @throws TroupeError INVALID_DATA */
export async function imageSize(
  bytes: Uint8Array,
  where: string,
): Promise<{ height: number; width: number }> {
  try {
    const { height, width } = await sharp(bytes, { limitInputPixels: MOST_PIXELS }).metadata();
    return { height, width };
  } catch (cause) {
    throw unreadable(bytes, where, cause);
  }
}

function unreadable(bytes: Uint8Array, where: string, cause: unknown): TroupeError {
  return new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected the bytes of a PNG, JPEG, WebP, GIF or TIFF of at most ${MOST_PIXELS} pixels, got ${bytes.length} bytes that ` +
      `cannot be read: ${printable(reasonOf(cause))}`,
    { cause },
  );
}

/** Grey in all three; the last of two or four channels is how much is seen of a pixel. */
function redGreenBlue(data: Uint8Array, count: number, channels: number): Uint8Array {
  const pixels = new Uint8Array(3 * count);
  const grey = channels < 3;
  const alpha = channels === 2 || channels === 4;
  for (let i = 0; i < count; i++) {
    const at = i * channels;
    const seen = alpha ? (data[at + channels - 1] as number) : 255;
    for (let c = 0; c < 3; c++) pixels[3 * i + c] = onWhite(data[at + (grey ? 0 : c)] as number, seen);
  }
  return pixels;
}

/** Pillow's paste() with a mask, rounded as it does it. */
function onWhite(value: number, seen: number): number {
  const sum = 255 * (255 - seen) + value * seen + 128;
  return ((sum >> 8) + sum) >> 8;
}
