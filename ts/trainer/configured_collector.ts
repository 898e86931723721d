// Where the steps of a run get their responses from, as its configuration and the checkpoint that it goes on from say.
import { asynchrony } from '../config/derived/asynchrony';
import { AsyncCollector } from './async_collector';
import { BatchCollector, type CollectContext, type Collector } from './collect';
import { PromptStream, StreamedBatches } from './prompt_stream';
import type { Session } from './session';
import type { PromptSource } from './training_data';

export function configuredCollector(
  context: CollectContext,
  source: PromptSource,
  { firstStep, checkpoint }: Pick<Session, 'firstStep' | 'checkpoint'>,
  totalSteps: number,
): Collector {
  const { config } = context;
  const { batchesPerEpoch } = source;
  const queue = checkpoint?.state.queue;
  const stream = new PromptStream(source, firstStep, queue);
  const ahead = asynchrony(config);
  if (ahead !== null) return new AsyncCollector(context, stream, { ...ahead, totalSteps, batchesPerEpoch });
  // Of a run that was ahead of its steps.
  if (queue?.read.length)
    return new BatchCollector(
      context,
      new StreamedBatches(stream, config.data.gen_batch_size, batchesPerEpoch),
    );
  return new BatchCollector(context, {
    batchesPerEpoch,
    next: () => source.next(),
    position: () => ({ loader: source.state() }),
  });
}
