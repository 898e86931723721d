// How the model of a run reads the images of its data.
import { loadModelDirectory } from '../checkpoint/model_dir';
import type { ImageReading } from '../data/images/image_tokens';
import { ConfigError } from '../errors';
import { readImageProcessor } from '../model/image_processor';

/** data.mm_processor_kwargs */
interface PixelLimits {
  readonly min_pixels: number | null;
  readonly max_pixels: number | null;
}

/** `read_images` as resolved (roles/images_of_data.ts). null: it reads text alone. @throws ConfigError; TroupeError INVALID_MODEL where its directory does not say how */
export function imageReading(
  { path: model, read_images }: { readonly path: string; readonly read_images: boolean | null },
  { min_pixels: least, max_pixels: most }: PixelLimits,
): ImageReading | null {
  const { vision } = loadModelDirectory(model, 'lm', { readsImages: read_images === true }).config;
  if (vision === null) return null;
  const processor = readImageProcessor(model);
  const minPixels = least ?? Math.min(processor.minPixels, most ?? processor.minPixels);
  const maxPixels = most ?? Math.max(processor.maxPixels, minPixels);
  if (minPixels > maxPixels)
    throw new ConfigError(
      `data.mm_processor_kwargs.max_pixels ${maxPixels}: expected at least min_pixels, ${minPixels}`,
      'data.mm_processor_kwargs.max_pixels',
    );
  return { ...processor, minPixels, maxPixels, imageToken: vision.imageToken };
}
