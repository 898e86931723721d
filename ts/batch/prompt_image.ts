// An image of a prompt, as it travels: decoded, and in the size in which the model reads it.

/** Rows of pixels from the top, of three bytes each: red, green, blue. Never changed once it is made: samples of a prompt share it. */
export interface PromptImage {
  height: number;
  width: number;
  pixels: Uint8Array; // [height * width * 3]
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
