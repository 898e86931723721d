// Which way a run gets its responses, and where in its data it goes on.
import { asynchrony } from '../config/derived/asynchrony';
import type { QueueState } from '../run/trainer_state';
import { AsyncCollector } from './async_collector';
import { BatchCollector, type CollectContext, type Collector } from './collect';
import { PromptStream, StreamedBatches } from './prompt_stream';
import { RolloutRecordings } from './rollout_recordings';
import type { PromptSource } from './training_data';

/** Where a run stands. */
export interface CollectedBefore {
  /** Steps done before. */
  firstStep: number;
  /** Of the whole run. */
  totalSteps: number;
  /** What the checkpoint says of prompts that were worked on ahead. */
  queue?: QueueState | undefined;
}

/** By `trainer.v1`; a run whose steps wait for their own prompts begins with what one that was ahead of its steps has left. */
export function createCollector(
  context: CollectContext,
  source: PromptSource,
  { firstStep, totalSteps, queue }: CollectedBefore,
): Collector {
  const { config } = context;
  const { batchesPerEpoch } = source;
  const stream = new PromptStream(source, firstStep, queue);
  const ahead = asynchrony(config);
  if (ahead !== null) return new AsyncCollector(context, stream, { ...ahead, totalSteps, batchesPerEpoch });
  const recordings = config.skip.rollout.enable ? new RolloutRecordings(config) : null;
  const batches = queue?.read.length
    ? new StreamedBatches(stream, config.data.gen_batch_size, batchesPerEpoch)
    : {
        batchesPerEpoch,
        next: () => source.next(),
        position: () => ({ loader: source.state() }),
      };
  return new BatchCollector(context, batches, recordings);
}
