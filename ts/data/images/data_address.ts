// An image that has been read as an address that holds it.
import type { PromptImage } from '../../batch/prompt_image';

/** A PNG of the very pixels: in this size the model reads it as it is. */
export async function dataAddress({ height, width, pixels }: PromptImage): Promise<string> {
  const { default: sharp } = await import('sharp');
  const png = await sharp(pixels, { raw: { height, width, channels: 3 } })
    .png()
    .toBuffer();
  return `data:image/png;base64,${png.toString('base64')}`;
}
