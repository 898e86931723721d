// Images for scripts, as a data set reads them.
import path from 'node:path';
import { requirePath } from '../base/check_options';
import type { PromptImage } from '../batch/prompt_image';
import { readImageProcessor } from '../model/image_processor';
import { RowImages } from './row_images';

/**
 * Image files (paths, data: addresses) or their bytes, in the size in which the model of a directory reads them: for `generate`, requests of a rollout,
 * and the column `images` of a batch. An image stands for height * width / side^2 image tokens of its prompt, where side is that of `patch_size * merge_size` pixels.
 * @throws TroupeError INVALID_DATA or IO naming the image, INVALID_MODEL for a model that does not say how it reads images
 */
export async function readImages(
  model: string,
  images: readonly (string | Uint8Array)[],
): Promise<PromptImage[]> {
  requirePath('readImages', 'a model directory', model);
  const reading = { ...readImageProcessor(model), imageToken: -1 };
  return RowImages.of({ images }, 'images', reading, path.resolve('images'), 'readImages').read();
}
