// From prompts to scored responses: what a training step and a validation have in common.
import { trajectoryRows } from '../agent/trajectory/trajectory_batch';
import { Batch } from '../batch/batch';
import { type PromptImage, type PromptImages, readPromptImages } from '../batch/prompt_image';
import { firstWithPrompt } from '../batch/prompts';
import type { RewardManager, Rewards } from '../reward/contract/types';
import type { RewardModelEngine } from '../reward_model/reward_model';
import { sampleBatch } from '../rollout/batch';
import type { RolloutEngine } from '../rollout/engine';
import type { SamplingOptions } from '../rollout/sampling';
import type { DumpRow } from '../run/run_directory';

/** A prompt and what its row of the data set says about it. */
export interface Prompt {
  tokens: ArrayLike<number>;
  dataSource: string;
  groundTruth: unknown;
  extraInfo: Record<string, unknown>;
  /** The prompt as its row has it: text, or messages. A reward model with a tokenizer of its own needs it. */
  rawPrompt?: unknown;
  /** Of the prompt, in order; of a model that reads images. */
  images?: PromptImages;
}

/** Turns token ids back into text. */
export interface Decoder {
  decode(tokens: ArrayLike<number>, options: { skipSpecialTokens: boolean }): string;
}

/** Of each prompt; null: of a model that reads text alone. */
export async function imagesOf(
  prompts: readonly Pick<Prompt, 'images'>[],
): Promise<(readonly PromptImage[])[] | null> {
  if (!prompts.some(({ images }) => images !== undefined)) return null;
  return await readPromptImages(prompts.map(({ images = [] }) => images));
}

/**
 * `n` responses per prompt, grouped by prompt, with the columns uid (equal for responses to one prompt), dataSource,
 * groundTruth, extraInfo and rawPrompt.
 */
export async function generateResponses(
  engine: RolloutEngine,
  prompts: readonly Prompt[],
  sampling: SamplingOptions,
  uidPrefix: string,
): Promise<Batch> {
  const batch = await sampleBatch(
    engine,
    prompts.map((prompt) => prompt.tokens),
    sampling,
    { images: await imagesOf(prompts) },
  );
  return withPrompts(batch, prompts, (index) => `${uidPrefix}-${index}`);
}

/** The same number of responses per prompt, grouped by prompt, with what is known of their prompts. */
export function withPrompts(batch: Batch, prompts: readonly Prompt[], uid: (index: number) => string): Batch {
  const n = batch.size / prompts.length;
  const perResponse = <T>(value: (prompt: Prompt, index: number) => T): T[] =>
    prompts.flatMap((prompt, index) => new Array<T>(n).fill(value(prompt, index)));
  const columns = {
    uid: perResponse((_, index) => uid(index)),
    dataSource: perResponse((prompt) => prompt.dataSource),
    groundTruth: perResponse((prompt) => prompt.groundTruth),
    extraInfo: perResponse((prompt) => prompt.extraInfo),
    rawPrompt: perResponse((prompt) => prompt.rawPrompt),
  };
  return batch.with(columns, { granularity: { extraInfo: 'sequence', rawPrompt: 'sequence' } });
}

/** Responses with their texts and rewards. */
export interface Scored {
  batch: Batch;
  inputs: string[];
  outputs: string[];
  rewards: Rewards;
  /** [B] each: what dumps show besides and metrics do not. */
  notes?: Readonly<Record<string, unknown[]>>;
}

/**
 * Adds `score` [B] and `tokenScores` [ΣR]: the score on the last token of each response, 0 elsewhere. With a reward model the
 * reward function is given its score.
 */
export async function scoreResponses(
  batch: Batch,
  decoder: Decoder,
  manager: RewardManager,
  rewardModel: RewardModelEngine | null,
): Promise<Scored> {
  const rows = Array.from({ length: batch.size }, (_, i) => i);
  // A prompt is decoded once, not once per response.
  const inputs: string[] = [];
  for (const [i, first] of firstWithPrompt(batch).entries())
    inputs.push(inputs[first] ?? decoder.decode(batch.prompt(i), { skipSpecialTokens: false }));
  const responses = rows.map((i) => batch.response(i));
  const outputs = responses.map((tokens) => decoder.decode(tokens, { skipSpecialTokens: true }));
  const modelScores = await rewardModel?.score(batch);
  const samples = rows.map((i) => ({
    prompt: inputs[i] as string,
    response: outputs[i] as string,
    responseTokens: responses[i] as Int32Array,
    groundTruth: batch.get('groundTruth')[i],
    dataSource: batch.get('dataSource')[i] as string,
    extraInfo: batch.get('extraInfo')[i] as Record<string, unknown>,
    numTurns: 2,
    ...(modelScores ? { rewardModelScore: modelScores[i] as number } : {}),
  }));
  const rewards = await manager.score(samples);
  const tokenScores = new Float32Array(batch.numResponseTokens);
  for (const i of rows) {
    const end = batch.responseOffsets[i + 1] as number;
    // An empty response has no token to carry its score: group statistics take it from `score`.
    if (end > (batch.responseOffsets[i] as number)) tokenScores[end - 1] = rewards.scores[i] as number;
  }
  const columns = { tokenScores, score: Array.from(rewards.scores) };
  return { batch: batch.with(columns, { adopt: true }), inputs, outputs, rewards };
}

/** These responses, in this order. */
export function takeScored(
  { batch, inputs, outputs, rewards, notes }: Scored,
  rows: readonly number[],
): Scored {
  const pick = <T>(column: ArrayLike<T>): T[] => rows.map((row) => column[row] as T);
  const pickAll = (columns: Readonly<Record<string, unknown[]>>): Record<string, unknown[]> =>
    Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, pick(column)]));
  return {
    batch: batch.take(rows),
    inputs: pick(inputs),
    outputs: pick(outputs),
    rewards: {
      ...rewards,
      scores: Float64Array.from(pick(rewards.scores)),
      extras: pickAll(rewards.extras),
    },
    ...(notes ? { notes: pickAll(notes) } : {}),
  };
}

/** One after another; what the reward function returned for some parts only is undefined in the others. */
export function concatScored(parts: readonly Scored[]): Scored {
  const noted = Object.keys(parts[0]?.notes ?? {});
  const keys = new Set(parts.flatMap(({ rewards }) => Object.keys(rewards.extras)));
  const column = (key: string): unknown[] =>
    parts.flatMap(({ rewards, batch }) =>
      Object.hasOwn(rewards.extras, key)
        ? (rewards.extras[key] as unknown[])
        : new Array(batch.size).fill(undefined),
    );
  return {
    batch: Batch.concat(parts.map(({ batch }) => batch)),
    inputs: parts.flatMap(({ inputs }) => inputs),
    outputs: parts.flatMap(({ outputs }) => outputs),
    rewards: {
      scores: Float64Array.from(parts.flatMap(({ rewards }) => [...rewards.scores])),
      extras: Object.fromEntries([...keys].map((key) => [key, column(key)])),
      failures: parts.reduce((sum, { rewards }) => sum + rewards.failures, 0),
    },
    ...(noted.length > 0
      ? {
          notes: Object.fromEntries(
            noted.map((key) => [key, parts.flatMap(({ notes }) => notes?.[key] ?? [])]),
          ),
        }
      : {}),
  };
}

/** One line per response, or per trajectory, for the dumps. */
export function dumpRows(step: number, scored: Scored): DumpRow[] {
  const { batch, inputs, outputs, rewards, notes = {} } = scored;
  const groundTruths = batch.get('groundTruth');
  const rows = batch.has('trajectory')
    ? trajectoryRows(batch).map(({ start }) => start)
    : Array.from(inputs.keys());
  const { score: _, ...extras } = rewards.extras;
  const columns = { ...notes, ...extras };
  return rows.map((i) => ({
    step,
    input: inputs[i] as string,
    output: outputs[i] as string,
    gts: groundTruths[i],
    score: rewards.scores[i] as number,
    ...Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, column[i]])),
  }));
}
