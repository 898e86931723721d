// Small models that read images, image files, and what transformers makes of them (test/fixtures/images/make_fixtures.py).
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { Batch } from '../../ts/batch/batch';
import type { PromptImage } from '../../ts/batch/prompt_image';
import { RowImages } from '../../ts/data/row_images';
import { readImageProcessor } from '../../ts/model/image_processor';
import { readSafetensors, type TestTensor } from './safetensors';

export const IMAGES = path.join(__dirname, '..', 'fixtures', 'images');
export const IMAGE_TOKEN = 60;

interface Sequence {
  images: string[];
  prompt: number[];
  response: number[];
  logProbs: number[];
  entropies: number[];
  greedy: number[];
  positions: number[][];
  delta: number;
}

const read = (file: string): unknown => JSON.parse(readFileSync(path.join(IMAGES, file), 'utf8'));

/** Names of the models. Of the last two the language model may be read alone. */
export const VISION_NAMES = [
  'qwen2_vl',
  'qwen2_5_vl',
  'qwen3_vl',
  'qwen3_vl_moe',
  'glm4v',
  'glm4v_moe',
  'qwen3_5',
  'qwen3_5_moe',
] as const;
export type VisionName = (typeof VISION_NAMES)[number];

/** A model and what was recorded of it. */
export interface VisionModel {
  /** What an actor is made of. */
  options: { model: string; readsImages?: true };
  sequences: readonly Sequence[];
  /** [ΣR] */
  advantages: Float32Array;
  /** Of the policy loss, by the names of the model's files. */
  gradients(): Record<string, TestTensor>;
  /** The sequences with their images; those of one prompt share them. */
  batch(): Promise<Batch>;
}

export function visionModel(name: VisionName): VisionModel {
  const { sequences, advantages } = read(`${name}.json`) as { sequences: Sequence[]; advantages: number[] };
  return {
    options: { model: path.join(IMAGES, name), ...(name.startsWith('qwen3_5') ? { readsImages: true } : {}) },
    sequences,
    advantages: Float32Array.from(advantages),
    gradients: () => readSafetensors(path.join(IMAGES, `${name}.gradients.safetensors`)),
    batch: async () => {
      const known = new Map<string, PromptImage[]>();
      for (const { images } of sequences) known.set(images.join(), await readFixtures(images));
      return Batch.fromSequences(
        sequences.map(({ prompt }) => prompt),
        sequences.map(({ response }) => response),
        { images: sequences.map(({ images }) => known.get(images.join()) as PromptImage[]) },
      );
    },
  };
}

const plain = visionModel('qwen3_vl');
export const VISION_MODEL = plain.options.model;
export const SEQUENCES = plain.sequences;

/** Height, width, least and most pixels, and what transformers' smart_resize makes of them. */
export const SIZES = read('sizes.json') as readonly number[][];

/** Those of Glm4vImageProcessor, of tokens of 28 pixels and of two frames; null: too oblong. */
export const GLM_SIZES = read('glm_sizes.json') as readonly (readonly [
  height: number,
  width: number,
  least: number,
  most: number,
  size: [number, number] | null,
])[];

export const READING = { ...readImageProcessor(VISION_MODEL), imageToken: IMAGE_TOKEN };

/** Of files beside the model, as a data set reads them. */
export function readFixtures(names: readonly string[]): Promise<PromptImage[]> {
  const dataFile = path.join(IMAGES, 'rows.jsonl');
  return RowImages.of({ images: names }, 'images', READING, dataFile, 'rows.jsonl:1').read();
}
