// In which size an image is read.
import type { ImageProcessor } from '../../model/image_processor';

/** The greatest ratio of the sides of an image, as transformers has it. */
const MOST_OBLONG = 200;

/** As Python's round(): halves to the even number. */
function roundHalfEven(x: number): number {
  const below = Math.floor(x);
  const beyond = x - below;
  if (beyond !== 0.5) return beyond < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

/**
 * transformers' smart_resize: sides that divide into tokens, as many pixels as the processor allows, and nearly the same ratio.
 * Returns [height, width]; null: too oblong.
 */
export function smartResize(
  givenHeight: number,
  givenWidth: number,
  { minPixels, maxPixels, enlarges, patchSize, mergeSize }: ImageProcessor,
): [number, number] | null {
  const factor = patchSize * mergeSize;
  const enlarged = enlarges ? Math.max(factor / givenHeight, factor / givenWidth) : 1;
  const [height, width] =
    enlarged > 1
      ? [Math.trunc(givenHeight * enlarged), Math.trunc(givenWidth * enlarged)]
      : [givenHeight, givenWidth];
  if (Math.max(height, width) / Math.min(height, width) > MOST_OBLONG) return null;
  const tall = roundHalfEven(height / factor) * factor;
  const wide = roundHalfEven(width / factor) * factor;
  if (tall * wide > maxPixels) {
    const beta = Math.sqrt((height * width) / maxPixels);
    const side = (length: number): number => Math.max(factor, Math.floor(length / beta / factor) * factor);
    return [side(height), side(width)];
  }
  if (tall * wide < minPixels) {
    const beta = Math.sqrt(minPixels / (height * width));
    const side = (length: number): number => Math.ceil((length * beta) / factor) * factor;
    return [side(height), side(width)];
  }
  return [tall, wide];
}
