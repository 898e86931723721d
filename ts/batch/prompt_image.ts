// An image of a prompt, as it travels: decoded, and in the size in which the model reads it.

/** Rows of pixels from the top, of three bytes each: red, green, blue. Never changed once it is made: samples of a prompt share it. */
export interface PromptImage {
  height: number;
  width: number;
  pixels: Uint8Array; // [height * width * 3]
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
