// A small Qwen3-VL, image files, and what transformers makes of them (test/fixtures/images/make_fixtures.py).
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Batch } from '../../ts/batch/batch';
import type { PromptImage } from '../../ts/batch/prompt_image';
import { RowImages } from '../../ts/data/row_images';
import { readImageProcessor } from '../../ts/model/image_processor';

export const IMAGES = path.join(__dirname, '..', 'fixtures', 'images');
export const VISION_MODEL = path.join(IMAGES, 'qwen3_vl');
export const IMAGE_TOKEN = 60;

interface Sequence {
  images: string[];
  prompt: number[];
  response: number[];
  logProbs: number[];
  greedy: number[];
  positions: number[][];
  delta: number;
}

const file = JSON.parse(readFileSync(path.join(IMAGES, 'sequences.json'), 'utf8')) as {
  advantages: number[];
  sequences: Sequence[];
  sizes: number[][];
};
export const SEQUENCES: readonly Sequence[] = file.sequences;
/** [ΣR] */
export const ADVANTAGES: readonly number[] = file.advantages;

/** Height, width, least and most pixels, and what transformers' smart_resize makes of them. */
export const SIZES: readonly number[][] = file.sizes;

export const READING = { ...readImageProcessor(VISION_MODEL), imageToken: IMAGE_TOKEN };

/** Of files beside the model, as a data set reads them. */
export function readFixtures(names: readonly string[]): Promise<PromptImage[]> {
  const dataFile = path.join(IMAGES, 'rows.jsonl');
  return RowImages.of({ images: names }, 'images', READING, dataFile, 'rows.jsonl:1').read();
}

/** The sequences with their images; those of one prompt share them. */
export async function visionBatch(): Promise<Batch> {
  const known = new Map<string, PromptImage[]>();
  for (const { images } of SEQUENCES) known.set(images.join(), await readFixtures(images));
  return Batch.fromSequences(
    SEQUENCES.map(({ prompt }) => prompt),
    SEQUENCES.map(({ response }) => response),
    { images: SEQUENCES.map(({ images }) => known.get(images.join()) as PromptImage[]) },
  );
}
