// Bytes of image files as pixels.
import type { Metadata, Sharp } from 'sharp';
import { printable } from '../../base/printable';
import { reasonOf } from '../../base/text';
import type { PromptImage } from '../../batch/prompt_image';
import { TroupeError } from '../../errors';
import { isImageFile } from './image_format';

/** Of a file: more is a mistake, or an attack on the memory. */
const MOST_PIXELS = 2 ** 27;

/**
 * What the decoder only warns of (bytes between markers of a JPEG) is read, as Pillow reads it; what is cut short is not. Its own limit of pixels
 * does not say how many there are.
 */
const OPTIONS = { ignoreIcc: true, limitInputPixels: false, failOn: 'error' } as const;

/**
 * PNG, JPEG, WebP, GIF (the first frame) or TIFF as red, green and blue, as vLLM reads it: turned as its EXIF orientation says, without colour profiles,
 * what is transparent on white. Of 16 bits the higher eight are taken, where Pillow cuts grey off at 255.
 * @throws TroupeError INVALID_DATA; of one with more than `mostPixels` before any of them is decoded
 */
export function decodeImage(
  bytes: Uint8Array,
  where: string,
  mostPixels: number = MOST_PIXELS,
): Promise<PromptImage> {
  return reading(bytes, where, mostPixels, async (image, { space }) => {
    // Else four inks would become colours by a profile of the decoder's own.
    const own = space === 'cmyk' ? 'cmyk' : 'srgb';
    if (own === 'cmyk') image.pipelineColourspace(own);
    const { data, info } = await image
      .autoOrient()
      .toColourspace(own)
      .raw()
      .toBuffer({ resolveWithObject: true });
    const { height, width, channels } = info;
    const pixels = own === 'cmyk' ? colours(data, channels) : redGreenBlue(data, channels);
    return { height, width, pixels };
  });
}

/** Of the image as it is read, without a look at its pixels. @throws TroupeError INVALID_DATA */
export const imageSize = (
  bytes: Uint8Array,
  where: string,
  mostPixels: number = MOST_PIXELS,
): Promise<{ height: number; width: number }> =>
  reading(bytes, where, mostPixels, async (_, { autoOrient: { height, width } }) => ({ height, width }));

async function reading<T>(
  bytes: Uint8Array,
  where: string,
  mostPixels: number,
  read: (image: Sharp, of: Metadata) => Promise<T>,
): Promise<T> {
  try {
    // Others that the decoder knows are drawings (SVG), which are programs.
    if (!isImageFile(bytes)) throw new Error('they begin as none of these does');
    const { default: sharp } = await import('sharp');
    const image = sharp(bytes, OPTIONS);
    const metadata = await image.metadata();
    const { height, width } = metadata;
    if (height * width > mostPixels) throw new Error(`it has ${height} x ${width} pixels`);
    return await read(image, metadata);
  } catch (cause) {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected the bytes of a PNG, JPEG, WebP, GIF or TIFF of at most ${mostPixels} pixels, got ${bytes.length} bytes that ` +
        `cannot be read: ${printable(reasonOf(cause))}`,
      { cause },
    );
  }
}

/** Grey in all three; the last of two or four channels is how much is seen of a pixel. */
function redGreenBlue(data: Uint8Array, channels: number): Uint8Array {
  const count = data.length / channels;
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

/** Cyan, magenta, yellow and black: what they leave of white. */
function colours(data: Uint8Array, channels: number): Uint8Array {
  const count = data.length / channels;
  const pixels = new Uint8Array(3 * count);
  for (let i = 0; i < count; i++) {
    const white = 255 - (data[i * channels + 3] as number);
    for (let c = 0; c < 3; c++) pixels[3 * i + c] = white - part((data[i * channels + c] as number) * white);
  }
  return pixels;
}

/** Pillow's paste() with a mask. */
const onWhite = (value: number, seen: number): number => part(255 * (255 - seen) + value * seen);

/** A product of two bytes as one, rounded as Pillow does it. */
const part = (product: number): number => (product + 128 + ((product + 128) >> 8)) >> 8;
