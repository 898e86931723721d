// How a model's images are brought into the size and the numbers that its tower reads: preprocessor_config.json.
import { existsSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { MODEL_LIMITS } from '../base/limits';
import { printable } from '../base/printable';
import { readTextFile } from '../base/regular_file';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { firstIssue } from './issue';

/** What is done to an image, as transformers' Qwen2VLImageProcessor and Glm4vImageProcessor do it. */
export interface ImageProcessor {
  /** Pixels of the whole image, at least and at most; no whole numbers where they were given for an odd number of frames. */
  minPixels: number;
  maxPixels: number;
  /** Where a side is shorter than a token, the image is first enlarged until it is as long. */
  enlarges: boolean;
  /** Pixels on a side of a patch, and patches on a side of what one token stands for. */
  patchSize: number;
  mergeSize: number;
  /** Frames of a patch, of which an image fills all; null: it does not say. */
  temporalPatchSize: number | null;
  /** [3] of pixels between 0 and 1. */
  mean: number[];
  std: number[];
}

const pixels = z
  .number()
  .int()
  .positive()
  .max(2 ** 30);
const size = z.number().int().positive().max(MODEL_LIMITS.headDim);
/** Of pixels between 0 and 255 the core has them in float32. */
const inFloats = (value: number): boolean => Number.isFinite(Math.fround(255 * value));
const channels = z.array(z.number().refine(inFloats, 'expected a number that float32 can hold')).length(3);
const deviations = z
  .array(
    z
      .number()
      .refine(
        (value) => inFloats(value) && Math.fround(255 * value) > 0,
        'expected a number > 0 that float32 can hold',
      ),
  )
  .length(3);
/** Those of GLM-4.1V, whose limits are of the pixels of all frames of a patch. */
const GLM = /^Glm(4v|46V)ImageProcessor/;
/** What they take temporal_patch_size for where the file does not say it. */
const GLM_FRAMES = 2;

const schema = z.object({
  image_processor_type: z.string().nullish(),
  size: z.object({ shortest_edge: pixels.nullish(), longest_edge: pixels.nullish() }).nullish(),
  min_pixels: pixels.nullish(),
  max_pixels: pixels.nullish(),
  patch_size: size,
  merge_size: size,
  temporal_patch_size: size.nullish(),
  image_mean: channels,
  image_std: deviations,
  do_resize: z.literal(true).nullish(),
  do_rescale: z.literal(true).nullish(),
  do_normalize: z.literal(true).nullish(),
  rescale_factor: z.literal(1 / 255).nullish(),
  /** Bicubic. */
  resample: z.literal(3).nullish(),
});

/**
 * Of a model directory: preprocessor_config.json, or the `image_processor` of processor_config.json, as transformers 5 saves it.
 * @throws TroupeError INVALID_MODEL naming file and key
 */
export function readImageProcessor(dir: string): ImageProcessor {
  const [file, whole] = readAny(dir);
  const raw = (whole['image_processor'] ?? whole) as Record<string, unknown>;
  const parsed = schema.safeParse(raw);
  if (!parsed.success)
    throw new TroupeError('INVALID_MODEL', `[model] ${file}: ${firstIssue(parsed.error, raw)}`);
  const c = parsed.data;
  const isGlm = GLM.test(c.image_processor_type ?? '');
  const minPixels = (isGlm ? null : c.min_pixels) ?? c.size?.shortest_edge;
  const maxPixels = (isGlm ? null : c.max_pixels) ?? c.size?.longest_edge;
  if (minPixels == null || maxPixels == null || minPixels > maxPixels)
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${file}: expected size.shortest_edge and size.longest_edge, the least and the most pixels of an image, got ` +
        `${minPixels ?? 'none'} and ${maxPixels ?? 'none'}`,
    );
  const frames = isGlm ? (c.temporal_patch_size ?? GLM_FRAMES) : 1;
  return {
    minPixels: minPixels / frames,
    maxPixels: maxPixels / frames,
    enlarges: isGlm,
    patchSize: c.patch_size,
    mergeSize: c.merge_size,
    temporalPatchSize: c.temporal_patch_size ?? null,
    mean: c.image_mean,
    std: c.image_std,
  };
}

/** Whether {@link readImageProcessor} finds something there. */
export const hasImageProcessor = (dir: string): boolean => fileOf(dir) !== undefined;

const fileOf = (dir: string): string | undefined =>
  ['preprocessor_config.json', 'processor_config.json']
    .map((name) => path.join(dir, name))
    .find((name) => existsSync(name));

function readAny(dir: string): [string, Record<string, unknown>] {
  const file = fileOf(dir);
  if (file === undefined)
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${dir} has no preprocessor_config.json: expected one beside the config.json of a model that reads images`,
    );
  let whole: unknown;
  try {
    whole = JSON.parse(readTextFile(file));
  } catch (cause) {
    if (cause instanceof TroupeError) throw cause;
    throw new TroupeError(
      'INVALID_MODEL',
      `[model] ${file} is not valid JSON: ${printable(reasonOf(cause))}`,
      {
        cause,
      },
    );
  }
  if (typeof whole !== 'object' || whole === null)
    throw new TroupeError('INVALID_MODEL', `[model] ${file}: expected a JSON object`);
  return [file, whole as Record<string, unknown>];
}
