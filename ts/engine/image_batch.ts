// The images of a batch as the engine takes them: each once, however many sequences it belongs to.
import { offsetsOf } from '../batch/layout';
import type { PromptImage } from '../batch/prompt_image';
import { sameImages } from '../batch/prompt_image';
import type { NativeImage, NativeImageBatch } from '../native/bridge';
import type { SentBatch } from './batch_part';

/** null: the batch has none. */
export const imageBatch = (batch: SentBatch): NativeImageBatch | null =>
  batch.has('images') ? imagesOf(batch.get('images')) : null;

/** Those of each sequence, or of each prompt; null: none has any. */
export function imagesOf(each: readonly (readonly PromptImage[])[]): NativeImageBatch | null {
  const table = new ImageTable();
  const lists = each.map((images) => images.map((image) => table.add(image)));
  if (table.all.length === 0) return null;
  return {
    all: table.all,
    indices: Int32Array.from(lists.flat()),
    offsets: offsetsOf(lists.map((list) => list.length)),
  };
}

/** Images by number: equal ones have one. */
export class ImageTable {
  readonly all: NativeImage[] = [];
  private readonly numbers = new Map<PromptImage, number>();
  /** Of images with as many pixels. */
  private readonly bySize = new Map<number, PromptImage[]>();

  add(image: PromptImage): number {
    const known = this.numbers.get(image);
    if (known !== undefined) return known;
    const alike = this.bySize.get(image.pixels.length) ?? [];
    this.bySize.set(image.pixels.length, alike);
    const same = alike.find((other) => sameImages([other], [image]));
    const number = same === undefined ? this.all.length : (this.numbers.get(same) as number);
    this.numbers.set(image, number);
    if (same === undefined) {
      alike.push(image);
      const { height, width, pixels } = image;
      this.all.push({ height, width, pixels });
    }
    return number;
  }
}
