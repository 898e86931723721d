// Training prompts one at a time, and where among them a run stands that does not learn from them in their order.
import type { EpochState, QueueState } from '../run/trainer_state';
import type { Prompt } from './rollout';
import type { PromptSource } from './training_data';

export interface StreamedPrompt {
  prompt: Prompt;
  /** Of the loader, from 1: with `index`, what seeds and names follow from. */
  batch: number;
  index: number;
  /** The prompts of that batch. */
  siblings: readonly Prompt[];
  /** Of the data, counted from 0. */
  epoch: number;
  /** Among the prompts of the epoch that the stream has read, whatever batches they came in. */
  place: number;
}

/** A batch that has been read, of which or of those before it some prompts are not done with. */
interface OpenBatch {
  batch: number;
  /** Of the loader, before the batch. */
  state: unknown;
  epoch: number;
  /** Of its first prompt. */
  place: number;
  size: number;
}

interface Epoch {
  /** Prompts that this stream has read. */
  read: number;
  /** Prompts that this stream, or that of the run it goes on with, has read. */
  known: number;
  /** Places of those that are not done with. */
  left: Set<number>;
}

/**
 * The prompts of a source, batch after batch. The position is that of the first batch of which a prompt has not been done with, and which of
 * the prompts since then are left: a run that goes on from there works on these again, and on no others, also where its batches have another size.
 */
export class PromptStream {
  private readonly open: OpenBatch[] = [];
  /** Of the last batches; those before {@link asked} have been asked for. */
  private waiting: StreamedPrompt[] = [];
  private asked = 0;
  private readonly epochs: Map<number, Epoch>;
  /** The epoch of the last batch; null: nothing has been read. */
  private epoch: number | null = null;
  private nextBatch: number;

  /** @param firstStep steps done before; what a run without a queue has read is that many batches */
  constructor(
    private readonly source: PromptSource,
    firstStep: number,
    queue?: QueueState,
  ) {
    this.nextBatch = queue?.batch ?? firstStep + 1;
    this.epochs = new Map(
      (queue?.read ?? []).map(({ epoch, prompts: known, left }) => [
        epoch,
        { read: 0, known, left: new Set(left) },
      ]),
    );
  }

  async next(): Promise<StreamedPrompt> {
    for (;;) {
      const waiting = this.waiting[this.asked];
      if (waiting === undefined) {
        this.waiting = [];
        this.asked = 0;
        await this.read();
        continue;
      }
      this.asked++;
      return waiting;
    }
  }

  /** It was learnt from, or left out for good. */
  done({ epoch, place }: StreamedPrompt): void {
    this.epochs.get(epoch)?.left.delete(place);
  }

  position(): { loader: unknown; queue: QueueState } {
    while (this.open[0] !== undefined && !this.hasLeft(this.open[0])) this.open.shift();
    const [first] = this.open;
    const epoch = first?.epoch ?? this.epoch;
    const place = first?.place ?? this.epochs.get(epoch ?? 0)?.read ?? 0;
    const read = [...this.epochs].flatMap(([number, { known, left }]): EpochState[] => {
      // The loader stands behind what comes before.
      const from = number === epoch ? place : 0;
      if ((epoch !== null && number < epoch) || known <= from) return [];
      const places = [...left].filter((one) => one >= from).map((one) => one - from);
      return [{ epoch: number, prompts: known - from, left: places.sort((a, b) => a - b) }];
    });
    const batch = first?.batch ?? this.nextBatch;
    return { loader: first ? first.state : this.source.state(), queue: { batch, read } };
  }

  private hasLeft({ epoch, place, size }: OpenBatch): boolean {
    const left = this.epochs.get(epoch)?.left;
    return Array.from({ length: size }, (_, i) => place + i).some((one) => left?.has(one));
  }

  private async read(): Promise<void> {
    const state = this.source.state();
    const { prompts, epoch: number } = await this.source.next();
    const epoch = this.epochs.get(number) ?? { read: 0, known: 0, left: new Set() };
    this.epochs.set(number, epoch);
    this.epoch = number;
    const [oldest = number] = this.open.map((one) => one.epoch);
    for (const one of this.epochs.keys()) if (one < oldest) this.epochs.delete(one);
    const batch = this.nextBatch++;
    const first = epoch.read;
    for (const [index, prompt] of prompts.entries()) {
      const place = epoch.read++;
      if (place >= epoch.known) {
        epoch.known++;
        epoch.left.add(place);
      }
      if (epoch.left.has(place))
        this.waiting.push({ prompt, batch, index, siblings: prompts, epoch: number, place });
    }
    const read = { batch, state, epoch: number, place: first, size: prompts.length };
    if (this.open.length > 0 || this.hasLeft(read)) this.open.push(read);
  }
}

/** Of the prompts of a batch, which may be more than a call has arguments. */
export const newestEpoch = (prompts: readonly StreamedPrompt[]): number =>
  prompts.reduce((newest, { epoch }) => Math.max(newest, epoch), 0);

/** A stream in batches, each of which is done with as soon as it is asked for: what a run that was ahead of its steps has left, and what follows. */
export class StreamedBatches {
  constructor(
    private readonly stream: PromptStream,
    private readonly size: number,
    readonly batchesPerEpoch: number,
  ) {}

  async next(): Promise<{ prompts: Prompt[]; epoch: number }> {
    const prompts: StreamedPrompt[] = [];
    while (prompts.length < this.size) prompts.push(await this.stream.next());
    for (const prompt of prompts) this.stream.done(prompt);
    return {
      prompts: prompts.map(({ prompt }) => prompt),
      epoch: newestEpoch(prompts),
    };
  }

  position(): { loader: unknown; queue: QueueState } {
    return this.stream.position();
  }
}
