import { Batch } from '../../../ts/batch/batch';
import type { PromptImage } from '../../../ts/batch/prompt_image';
import { firstWithPrompt } from '../../../ts/batch/prompts';
import { BatchPart } from '../../../ts/engine/batch_part';
import { imageBatch } from '../../../ts/engine/image_batch';

const image = (fill: number): PromptImage => ({
  height: 2,
  width: 2,
  pixels: new Uint8Array(12).fill(fill),
});
const [red, blue] = [image(1), image(2)];
/** Equal prompts, of which the third has another image, and the last the same one read again. */
const batch = Batch.fromSequences([[1, 9], [1, 9], [1, 9], [1], [1, 9]], [[2], [3], [4], [5], [6]], {
  images: [[red], [red], [blue], [], [image(1)]],
});

test('an image is sent once, however many sequences have it', () => {
  expect(imageBatch(batch)).toEqual({
    all: [red, blue],
    indices: Int32Array.of(0, 0, 1, 0),
    offsets: Int32Array.of(0, 1, 2, 3, 3, 4),
  });
  expect(imageBatch(new BatchPart(batch, [2, 3]))).toEqual({
    all: [blue],
    indices: Int32Array.of(0),
    offsets: Int32Array.of(0, 1, 1),
  });
  expect(imageBatch(batch.take([3]))).toBeNull();
  expect(imageBatch(batch.drop('images'))).toBeNull();
});

test('prompts are the same with the same images alone', () => {
  expect([...firstWithPrompt(batch)]).toEqual([0, 0, 2, 3, 0]);
});

test('what is selected of a batch keeps the images of its prompts', () => {
  expect(batch.select([]).get('images')).toEqual(batch.get('images'));
});
