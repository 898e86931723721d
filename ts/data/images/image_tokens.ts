// Which tokens of a prompt stand for its images: a chat template writes one for each, and a model reads as many as the image has parts.
import type { PromptImage } from '../../batch/prompt_image';
import type { ImageProcessor } from '../../model/image_processor';

/** How a model reads images: their size, and the token that stands for their parts. */
export interface ImageReading extends ImageProcessor {
  imageToken: number;
}

/** How many tokens stand for an image of this size, in which it is read. */
export function tokensOfImage(
  { height, width }: Pick<PromptImage, 'height' | 'width'>,
  { patchSize, mergeSize }: ImageProcessor,
): number {
  return (height / (patchSize * mergeSize)) * (width / (patchSize * mergeSize));
}

/** How many of the tokens stand for an image. */
export const placesOfImages = (tokens: Int32Array, { imageToken }: ImageReading): number =>
  tokens.reduce((count, token) => count + (token === imageToken ? 1 : 0), 0);

/** The ids of a prompt that has one place for each of these images, with as many tokens in it as the image has. */
export function withImageTokens(
  tokens: Int32Array,
  images: readonly Pick<PromptImage, 'height' | 'width'>[],
  reading: ImageReading,
): Int32Array {
  const counts = images.map((image) => tokensOfImage(image, reading));
  const out = new Int32Array(tokens.length - images.length + counts.reduce((a, b) => a + b, 0));
  let at = 0;
  let image = 0;
  for (const token of tokens) {
    const count = token === reading.imageToken ? (counts[image++] as number) : 1;
    out.fill(token, at, at + count);
    at += count;
  }
  return out;
}
