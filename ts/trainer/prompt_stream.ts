// Training prompts one at a time, and where among them a run stands that does not learn from them in their order.
import type { QueueState } from '../run/trainer_state';
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
}

/** A batch of which some prompts are not done with. */
interface OpenBatch {
  /** Of the loader, before the batch. */
  state: unknown;
  left: Set<number>;
}

/**
 * The prompts of a source, batch after batch. The position is that of the first batch of which a prompt has not been done with, and which of
 * the prompts since then are left: a run that goes on from there works on these again, and on no others.
 */
export class PromptStream {
  private readonly open = new Map<number, OpenBatch>();
  private readonly waiting: StreamedPrompt[] = [];
  /** By the batches that are read first, what is left of them. */
  private readonly resumed: readonly (readonly number[])[];
  private readonly firstBatch: number;
  private nextBatch: number;

  /** @param firstStep steps done before; what a run without a queue has read is that many batches */
  constructor(
    private readonly source: PromptSource,
    firstStep: number,
    queue?: QueueState,
  ) {
    this.firstBatch = queue?.batch ?? firstStep + 1;
    this.nextBatch = this.firstBatch;
    this.resumed = queue?.left ?? [];
  }

  async next(): Promise<StreamedPrompt> {
    for (;;) {
      const waiting = this.waiting.shift();
      if (waiting !== undefined) return waiting;
      await this.read();
    }
  }

  /** It was learnt from, or left out for good. */
  done({ batch, index }: StreamedPrompt): void {
    this.open.get(batch)?.left.delete(index);
    for (const [number, { left }] of this.open) {
      if (left.size > 0) break;
      this.open.delete(number);
    }
  }

  position(): { loader: unknown; queue: QueueState } {
    const batches = [...this.open];
    const [first] = batches;
    if (first === undefined)
      return { loader: this.source.state(), queue: { batch: this.nextBatch, left: [] } };
    const left = batches.map(([, { left }]) => [...left].sort((a, b) => a - b));
    return { loader: first[1].state, queue: { batch: first[0], left } };
  }

  private async read(): Promise<void> {
    const state = this.source.state();
    const { prompts, epoch } = await this.source.next();
    const batch = this.nextBatch++;
    const left = this.resumed[batch - this.firstBatch] ?? [...prompts.keys()];
    this.open.set(batch, { state, left: new Set(left) });
    for (const index of left) {
      const prompt = prompts[index];
      if (prompt !== undefined) this.waiting.push({ prompt, batch, index, siblings: prompts, epoch });
    }
  }
}
