// The images that a prompt may have: which of them take most.
import { hasImageProcessor, readImageProcessor } from '../model/image_processor';
import type { NativeImageLoad, NativeVisionConfig } from '../native/bridge';

/** data.mm_processor_kwargs */
export interface PixelLimits {
  readonly min_pixels: number | null;
  readonly max_pixels: number | null;
}

/** How large a model reads an image. */
export interface ImageLimits {
  /** Tokens that stand for it, at least and at most; Infinity: the model does not say. */
  leastTokens: number;
  mostTokens: number;
  /** Bytes of the pixels that one token stands for. */
  tokenBytes: number;
}

/** One side is at most so many times the other (smart_resize of transformers). */
const MOST_OBLONG = 200;

/**
 * Of a model directory, of which preprocessor_config.json may be missing.
 * @throws TroupeError INVALID_MODEL for one that makes no sense
 */
export function imageLimits(
  dir: string,
  { patchSize, mergeSize }: NativeVisionConfig,
  given: PixelLimits,
): ImageLimits {
  const processor = hasImageProcessor(dir) ? readImageProcessor(dir) : null;
  const tokenPixels = (patchSize * mergeSize) ** 2;
  const least = given.min_pixels ?? processor?.minPixels ?? 1;
  const most = given.max_pixels ?? processor?.maxPixels ?? Number.POSITIVE_INFINITY;
  return {
    leastTokens: Math.max(1, Math.ceil(Math.min(least, most) / tokenPixels)),
    mostTokens: Math.max(1, Math.floor(Math.max(least, most) / tokenPixels)),
    tokenBytes: 3 * tokenPixels,
  };
}

/**
 * The images of a prompt of `tokens` tokens that are all of images, as far as these come out: as large as they may be, because in a tower
 * every patch sees all patches of its image.
 */
export function imagesWithin(
  tokens: number,
  { leastTokens, mostTokens }: Pick<ImageLimits, 'leastTokens' | 'mostTokens'>,
): NativeImageLoad[] {
  const images: NativeImageLoad[] = [];
  for (let left = tokens; left >= leastTokens; ) {
    const image = largestImage(Math.min(left, mostTokens));
    images.push(image);
    left -= image.height * image.width;
  }
  return images;
}

/** Tokens of rows and columns: of all rectangles within `tokens` the one that has most of them, the squarest of several. */
function largestImage(tokens: number): NativeImageLoad {
  let best = { height: 1, width: 1 };
  const flattest = Math.ceil(Math.sqrt(tokens / MOST_OBLONG));
  for (let height = Math.floor(Math.sqrt(tokens)); height >= flattest; height--) {
    const width = Math.floor(tokens / height);
    if (height * width > best.height * best.width) best = { height, width };
    if (height * width === tokens) break;
  }
  return best;
}

/** Tokens of all of them. */
export const imageTokens = (images: readonly NativeImageLoad[]): number =>
  images.reduce((sum, { height, width }) => sum + height * width, 0);
