// Batches as requests: n samples for each prompt, in order, with the seeds that follow from one.
import { badOption } from '../base/check_options';
import { roomFor } from '../base/response_room';
import type { Batch, Seqs } from '../batch/batch';
import type { PromptImage } from '../batch/prompt_image';
import type { RolloutEngine, RolloutHandle } from './engine';
import { promptsBatch, resolveSampling, type SamplingOptions, sampledBatch, sampleSeeds } from './sampling';

/** What there is besides the tokens of prompts. */
export interface PromptOptions {
  /** Of each prompt, in the order of its image tokens; null: none. */
  images?: readonly (readonly PromptImage[])[] | null;
  /** For messages. */
  where?: string;
  check?: (prompts: Batch) => void;
}

/**
 * Samples `n` responses to each prompt; sequence i * n + k of the result is sample k of prompt i, with rolloutLogProbs and a
 * responseMask of ones. The same seed gives the same samples of a prompt, whatever else is in the batch. When one request fails the
 * others are given up.
 */
export async function sampleBatch(
  engine: RolloutEngine,
  prompts: Seqs,
  o: SamplingOptions,
  { images = null, where = 'rollout', check = () => undefined }: PromptOptions = {},
): Promise<Batch> {
  const { sampling, n, seed, maxTokens } = resolveSampling(where, o);
  const { maxNewTokens } = sampling;
  const batch = promptsBatch(where, prompts, n, images);
  check(batch);
  const rooms = Array.from(batch.promptLens, (length) => roomFor(length, { maxNewTokens, maxTokens }));
  for (const [i, length] of batch.promptLens.entries()) {
    const room = rooms[i] as number;
    if (room < 1) {
      throw badOption(
        where,
        `prompt ${i} has ${length} tokens: expected fewer than the ${maxTokens} that prompt and response may have together`,
      );
    }
    if (length + room > engine.maxTokens) {
      throw badOption(
        where,
        `prompt ${i} has ${length} tokens and maxNewTokens is ${maxNewTokens}: the engine has room for ${engine.maxTokens} positions ` +
          '(those of the model, or of its cache: gpuMemoryUtilization)',
      );
    }
  }
  if (batch.size === 0) return batch.with({ rolloutLogProbs: new Float32Array(0) });
  const seeds = sampleSeeds(batch, n, seed);
  if (engine.submitBatch !== undefined)
    return engine.submitBatch({ prompts: batch, n, sampling, seeds, maxTokens });
  const ids = Array.from({ length: batch.size }, (_, i) => batch.prompt(i));
  const handles: RolloutHandle[] = [];
  try {
    for (const [j, own] of seeds.entries()) {
      const i = Math.floor(j / n);
      handles.push(
        engine.submit({
          promptIds: ids[i] as Int32Array,
          sampling: { ...sampling, maxNewTokens: rooms[i] as number, seed: own },
          ...(images === null ? {} : { images: images[i] ?? [] }),
        }),
      );
    }
    return sampledBatch(batch, n, await Promise.all(handles.map(({ result }) => result)));
  } catch (error) {
    for (const handle of handles) handle.abort();
    await Promise.allSettled(handles.map(({ result }) => result));
    throw error;
  }
}
