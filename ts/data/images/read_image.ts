// Bytes of an image file as what a model is given.
import type { PromptImage } from '../../batch/prompt_image';
import { TroupeError } from '../../errors';
import type { ImageProcessor } from '../../model/image_processor';
import { resizeBicubic } from './bicubic';
import { decodeImage } from './decode';
import { smartResize } from './smart_resize';

/** In the size in which the model reads it. @throws TroupeError INVALID_DATA, as decodeImage does */
export async function readImage(
  bytes: Uint8Array,
  processor: ImageProcessor,
  where: string,
  mostPixels?: number,
): Promise<PromptImage> {
  const { height, width, pixels } = await decodeImage(bytes, where, mostPixels);
  const [tall, wide] = sizeToRead(height, width, processor, where);
  return { height: tall, width: wide, pixels: resizeBicubic(pixels, height, width, tall, wide) };
}

/** [height, width] @throws TroupeError INVALID_DATA for one that is too oblong */
export function sizeToRead(
  height: number,
  width: number,
  processor: ImageProcessor,
  where: string,
): [number, number] {
  const size = smartResize(height, width, processor);
  if (size !== null) return size;
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: ${height} x ${width} pixels: expected sides of which one is at most 200 times the other`,
  );
}
