import type { ResolvedSftConfig } from '../config/config';
import { BatchLoader } from '../data/loader';
import { SampleSource } from '../data/reading/sample_source';
import { type SftColumns, SftDataset, type SftDatasetOptions, type SftSample } from '../data/sft_dataset';
import { imageReading } from './image_reading';
import { sftRoom } from './sft_room';
import { loadTokenizer } from './training_data';

/** An endless stream of training batches whose position can be kept and restored. */
export interface SftSource {
  readonly batchesPerEpoch: number;
  /** The next `data.train_batch_size` examples; `epoch` counts from 0. */
  next(): Promise<{ examples: SftSample[]; epoch: number }>;
  /** JSON of the position after the last batch. */
  state(): unknown;
  restore(state: unknown): void;
}

export interface SftData {
  train: SftSource;
  validation: SftSample[];
  close?(): Promise<void>;
}

/** Where the rows have their examples. */
export const sftColumns = ({ data }: ResolvedSftConfig): SftColumns => ({
  messagesKey: data.messages_key,
  promptKey: data.prompt_key,
  responseKey: data.response_key,
  applyChatTemplate: data.apply_chat_template,
  promptDictKeys: data.prompt_dict_keys ?? [],
  responseDictKeys: data.response_dict_keys ?? [],
});

/** The examples that `data.train_files` and `data.val_files` hold: few are tokenized here, so that a bad one shows before any work starts. */
export async function loadSftData(config: ResolvedSftConfig): Promise<SftData> {
  const { data, trainer } = config;
  const tokenizer = loadTokenizer(config.model);
  const images = imageReading(config.model, data.mm_processor_kwargs);
  const room = sftRoom(config);
  const seed = data.seed ?? trainer.seed;
  const open = async (paths: readonly string[], maxSamples: number): Promise<SampleSource<SftSample>> => {
    const options: SftDatasetOptions = {
      ...sftColumns(config),
      toolsKey: data.tools_key,
      enableThinkingKey: data.enable_thinking_key,
      maxLength: data.max_length,
      room,
      truncation: data.truncation,
      maxSamples,
      shuffle: data.shuffle,
      seed,
      chatTemplateArguments: data.apply_chat_template_kwargs,
      imageKey: data.image_key,
      images,
    };
    const dataset = await SftDataset.open(paths, tokenizer, options);
    return SampleSource.of<SftSample>(dataset, { kind: 'sft', paths, tokenizer: tokenizer.source, options });
  };
  const train = await open(data.train_files, data.train_max_samples);
  let heldOut: SampleSource<SftSample> | null = null;
  const close = async (): Promise<void> => {
    await Promise.all([train.close(), heldOut?.close()]);
  };
  const validation = async (files: readonly string[]): Promise<SftSample[]> => {
    heldOut = await open(files, data.val_max_samples);
    const examples = await heldOut.all();
    // Their images are read again in every validation.
    if (images === null) await heldOut.close();
    return examples;
  };
  try {
    const loader = new BatchLoader(train.length, await train.checkedLoad(), {
      batchSize: data.train_batch_size,
      shuffle: data.shuffle,
      seed,
    });
    // A run should not end in the middle for a row that never had a chance. Rows that this run does not reach are read, too, as where there are few: a
    // longer one, or another seed, would end there.
    if (room !== null && train.threads) await train.check();
    return {
      train: {
        batchesPerEpoch: loader.batchesPerEpoch(),
        next: async () => {
          const { samples, epoch } = await loader.next();
          return { examples: samples, epoch };
        },
        state: () => loader.state(),
        restore: (state) => loader.restore(state),
      },
      validation: data.val_files === null ? [] : await validation(data.val_files),
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}
