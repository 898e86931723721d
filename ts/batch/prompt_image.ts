// An image of a prompt, as it travels: decoded, and in the size in which the model reads it.
import { types } from 'node:util';
import { badOption } from '../base/check_options';
import { show } from '../base/text';

/** Rows of pixels from the top, of three bytes each: red, green, blue. Never changed once it is made: samples of a prompt share it. */
export interface PromptImage {
  height: number;
  width: number;
  pixels: Uint8Array; // [height * width * 3]
}

/**
 * Of one prompt.
 * @throws TroupeError INVALID_ARGUMENT for what is no list of images with as many bytes as pixels
 */
export function requireImages(where: string, images: unknown): asserts images is readonly PromptImage[] {
  if (!Array.isArray(images))
    throw badOption(where, `expected an array of images (readImages gives them) but got ${show(images)}`);
  // Not by forEach, which passes holes by.
  for (let i = 0; i < images.length; i++) {
    const { height, width, pixels } = (images[i] ?? {}) as { [K in keyof PromptImage]?: unknown };
    for (const [name, size] of Object.entries({ height, width }))
      if (!Number.isSafeInteger(size) || (size as number) < 1)
        throw badOption(where, `image ${i}: ${name}: expected a positive integer but got ${show(size)}`);
    const bytes = (height as number) * (width as number) * 3;
    if (!types.isUint8Array(pixels) || pixels.length !== bytes)
      throw badOption(
        where,
        `image ${i}: pixels: expected a Uint8Array of ${height} x ${width} x 3 = ${bytes} bytes but got ` +
          (types.isUint8Array(pixels) ? `one of ${pixels.length}` : show(pixels)),
      );
  }
}

/** Those of a prompt, or what reads them when they are wanted: their pixels have many times the bytes of their files. */
export type PromptImages = readonly PromptImage[] | (() => Promise<readonly PromptImage[]>);

/** Prompts whose images are read at a time: while it is decoded, each may be far larger than the model reads it. */
const AT_A_TIME = 8;

/** Of each prompt. @throws TroupeError as the reading of them does */
export async function readPromptImages(each: readonly PromptImages[]): Promise<(readonly PromptImage[])[]> {
  const out: (readonly PromptImage[])[] = [];
  for (let from = 0; from < each.length; from += AT_A_TIME) {
    const some = each.slice(from, from + AT_A_TIME);
    out.push(
      ...(await Promise.all(some.map((images) => (typeof images === 'function' ? images() : images)))),
    );
  }
  return out;
}

/** Whether two lists are of the same images, one by one. */
export function sameImages(a: readonly PromptImage[], b: readonly PromptImage[]): boolean {
  return a === b || (a.length === b.length && a.every((image, i) => sameImage(image, b[i] as PromptImage)));
}

function sameImage(a: PromptImage, b: PromptImage): boolean {
  if (a === b) return true;
  if (a.height !== b.height || a.width !== b.width) return false;
  return Buffer.from(a.pixels.buffer, a.pixels.byteOffset, a.pixels.length).equals(b.pixels);
}
