import type { ResolvedSftConfig } from '../config/config';
import { BatchLoader } from '../data/loader';
import { readSftDataset, type SftSample } from '../data/sft_dataset';
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
}

/** The examples that `data.train_files` and `data.val_files` hold. */
export async function loadSftData(config: ResolvedSftConfig): Promise<SftData> {
  const { data, trainer } = config;
  const tokenizer = loadTokenizer(config.model);
  const seed = data.seed ?? trainer.seed;
  const read = (files: readonly string[], maxSamples: number): Promise<SftSample[]> =>
    readSftDataset(files, tokenizer, {
      messagesKey: data.messages_key,
      promptKey: data.prompt_key,
      responseKey: data.response_key,
      toolsKey: data.tools_key,
      enableThinkingKey: data.enable_thinking_key,
      maxLength: data.max_length,
      truncation: data.truncation,
      maxSamples,
      shuffle: data.shuffle,
      seed,
      chatTemplateArguments: data.apply_chat_template_kwargs,
    });
  const examples = await read(data.train_files, data.train_max_samples);
  const load = async (indices: Int32Array): Promise<SftSample[]> =>
    Array.from(indices, (i) => examples[i] as SftSample);
  const loader = new BatchLoader(examples.length, load, {
    batchSize: data.train_batch_size,
    shuffle: data.shuffle,
    seed,
  });
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
    validation: data.val_files === null ? [] : await read(data.val_files, data.val_max_samples),
  };
}
