import { loadModelDirectory } from '../checkpoint/model_dir';
import type { ResolvedConfig } from '../config/config';
import { MOST_TOKENS, sequenceBounds } from '../config/derived/sequence_bounds';
import { BatchLoader } from '../data/loader';
import { SampleSource } from '../data/reading/sample_source';
import { RlDataset, type RlDatasetOptions, type RlSample } from '../data/rl_dataset';
import { checkVocabulary, Tokenizer } from '../data/tokenizer';
import { checkImages } from '../roles/check_images';
import { checkSizes } from '../roles/check_sizes';
import { runRoles } from '../roles/model_roles';
import { rowsOfData, type SetRows } from './class_rows';
import { imageReading } from './image_reading';
import type { Decoder, Prompt } from './rollout';

/** An endless stream of training batches whose position can be kept and restored. */
export interface PromptSource {
  readonly batchesPerEpoch: number;
  /** The next `data.gen_batch_size` (without dynamic sampling: `train_batch_size`) prompts; `epoch` counts from 0. */
  next(): Promise<{ prompts: Prompt[]; epoch: number }>;
  /** JSON of the position after the last batch. */
  state(): unknown;
  restore(state: unknown): void;
}

export interface TrainingData {
  train: PromptSource;
  validation: Prompt[];
  decoder: Decoder;
  /** What agents need of it. */
  tokenizer?: Tokenizer;
  /** Those known without reading all of the data. */
  dataSources?: ReadonlySet<string>;
  /** The same of the training prompts alone. */
  trainedSources?: ReadonlySet<string>;
  /** What people should know about the data. */
  notes?: readonly string[];
  /** Ends the threads that read them. */
  close?(): Promise<void>;
}

/** `tools`: as chat templates have them, those that every prompt comes with; null: none. `signal` gives up what a user's code makes. */
export type LoadTrainingData = (
  config: ResolvedConfig,
  tools?: readonly unknown[] | null,
  signal?: AbortSignal,
) => Promise<TrainingData>;

/** The tokenizer of a model directory, or of another one, checked against the model's vocabulary. */
export function loadTokenizer(model: {
  readonly path: string;
  readonly tokenizer_path: string | null;
  readonly custom_chat_template: string | null;
}): Tokenizer {
  const { vocabSize } = loadModelDirectory(model.path, 'lm').config;
  const tokenizer = Tokenizer.load(model.tokenizer_path ?? model.path, {
    chatTemplate: model.custom_chat_template,
  });
  checkVocabulary(tokenizer, vocabSize, model.path);
  return tokenizer;
}

/** A prompt leaves room for one token of a response at least. */
function promptLimit(config: ResolvedConfig): Pick<RlDatasetOptions, 'maxPromptLength' | 'lengthLimit'> {
  const { prompt, sequence } = sequenceBounds(config);
  if (prompt === config.data.max_prompt_length) return { maxPromptLength: prompt };
  return {
    maxPromptLength: prompt,
    lengthLimit: `${MOST_TOKENS} ${sequence} leaves beside a response (${prompt})`,
  };
}

/** What a batch of prompts is made of. */
export const promptBatch = ({ data }: ResolvedConfig): { batchSize: number; batchSizeKey: string } => ({
  batchSize: data.gen_batch_size,
  batchSizeKey:
    data.gen_batch_size === data.train_batch_size ? 'data.train_batch_size' : 'data.gen_batch_size',
});

const filterNote = (left: number, all: number, what: string): string =>
  `data.filter_overlong_prompts left out ${left} of ${all} ${what} prompts`;

/** A data set of prompts, and what reads them. */
interface Prompts {
  dataset: RlDataset;
  source: SampleSource<RlSample>;
}

/** Every prompt that `data.filter_overlong_prompts` leaves. */
async function allPrompts({ dataset, source }: Prompts, notes: string[]): Promise<Prompt[]> {
  const prompts = await source.all();
  if (prompts.length === 0) await dataset.countUsable();
  if (prompts.length < dataset.length)
    notes.push(filterNote(dataset.length - prompts.length, dataset.length, 'validation'));
  return prompts;
}

/**
 * Batches of an epoch. Only a run whose length follows from it has to know how many prompts `data.filter_overlong_prompts`
 * leaves, which takes tokenizing them; another one meets them as it goes, in the same order.
 */
async function batchesPerEpoch(
  config: ResolvedConfig,
  { dataset, source }: Prompts,
  loader: BatchLoader<Prompt>,
  notes: string[],
): Promise<number> {
  const { data, trainer } = config;
  if (!data.filter_overlong_prompts) return loader.batchesPerEpoch();
  if (trainer.total_training_steps !== null) {
    notes.push('data.filter_overlong_prompts: long training prompts are left out as they come');
    // Whether there is a batch at all should show before models are loaded.
    loader.batchesPerEpoch(await dataset.countUsable(data.gen_batch_size));
    return loader.batchesPerEpoch();
  }
  const { threads } = source;
  const usable = threads ? dataset.someUsable(await threads.usable()) : await dataset.countUsable();
  if (usable < dataset.length) notes.push(filterNote(dataset.length - usable, dataset.length, 'training'));
  return loader.batchesPerEpoch(usable);
}

/** The prompts that `data.train_files` and `data.val_files` hold, or that `data.custom_cls` makes of them. */
export const loadTrainingData: LoadTrainingData = async (config, tools = null, signal) => {
  const { data, trainer } = config;
  const tokenizer = loadTokenizer(config.actor_rollout_ref.model);
  const roles = runRoles(config);
  // A critic of a model that reads images has no size: that there is none is to be said first.
  checkImages(config, roles);
  checkSizes(config, roles);
  const images = imageReading(config.actor_rollout_ref.model, data.mm_processor_kwargs);
  const seed = data.seed ?? trainer.seed;
  const rows = await rowsOfData(config, seed, images !== null, signal);
  const open = async ({ paths }: SetRows, maxSamples: number): Promise<Prompts> => {
    const options: RlDatasetOptions = {
      promptKey: data.prompt_key,
      dataSourceKey: data.reward_fn_key,
      ...promptLimit(config),
      filterOverlongPrompts: data.filter_overlong_prompts,
      truncation: data.truncation,
      maxSamples,
      shuffle: data.shuffle,
      seed,
      chatTemplateArguments: data.apply_chat_template_kwargs,
      tools,
      imageKey: data.image_key,
      images,
    };
    const dataset = await RlDataset.open(paths, tokenizer, options);
    const spec = { kind: 'rl', paths, tokenizer: tokenizer.source, options } as const;
    return { dataset, source: SampleSource.of(dataset, spec) };
  };
  let train: Prompts | null = null;
  let heldOut: Prompts | null = null;
  const close = async (): Promise<void> => {
    await Promise.all([train?.source.close(), heldOut?.source.close()]);
    rows.close();
  };
  try {
    train = await open(rows.train, data.train_max_samples);
    const loader = new BatchLoader<Prompt>(train.dataset.length, train.source.load, {
      ...promptBatch(config),
      shuffle: data.shuffle,
      seed,
      ...(rows.train.digest === undefined ? {} : { content: rows.train.digest }),
    });
    const notes = [...rows.notes];
    const batches = await batchesPerEpoch(config, train, loader, notes);
    const { dataSources: trainedSources } = train.dataset;
    const dataSources = new Set(trainedSources);
    let validation: Prompt[] = [];
    if (rows.validation !== null) {
      heldOut = await open(rows.validation, data.val_max_samples);
      validation = await allPrompts(heldOut, notes);
      // Their images are read again in every validation.
      if (images === null) await heldOut.source.close();
      for (const source of heldOut.dataset.dataSources) dataSources.add(source);
    }
    return {
      train: {
        batchesPerEpoch: batches,
        next: async () => {
          const { samples, epoch } = await loader.next();
          return { prompts: samples, epoch };
        },
        state: () => loader.state(),
        restore: (state) => loader.restore(state),
      },
      validation,
      decoder: tokenizer,
      tokenizer,
      dataSources,
      trainedSources,
      notes,
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
};
