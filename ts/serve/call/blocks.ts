// A response as blocks of thoughts, text and calls of tools, one after the other, for dialects that number them.
import type { CallDelta } from './model_call';

export type BlockEvent =
  | { kind: 'thought_begin'; index: number }
  | { kind: 'thought'; index: number; text: string }
  | { kind: 'text_begin'; index: number }
  | { kind: 'text'; index: number; text: string }
  | { kind: 'call_begin'; index: number; id: string; name: string }
  | { kind: 'arguments'; index: number; text: string }
  | { kind: 'end'; index: number };

/** What there is of a block when it has ended. */
export type Block =
  | { kind: 'thought'; text: string }
  | { kind: 'text'; text: string }
  | { kind: 'call'; id: string; name: string; arguments: string };

/** Turns deltas into blocks; text that follows a thought or a call is a block of its own. */
export class BlockWriter {
  readonly blocks: Block[] = [];
  private open = false;

  *push({ text, calls, reasoning }: Pick<CallDelta, 'text' | 'calls' | 'reasoning'>): Generator<BlockEvent> {
    yield* this.words('thought', reasoning);
    yield* this.words('text', text);
    for (const { id, name, arguments: more } of calls) {
      if (id !== undefined && name !== undefined) {
        yield* this.end();
        this.blocks.push({ kind: 'call', id, name, arguments: '' });
        this.open = true;
        yield { kind: 'call_begin', index: this.index, id, name };
      }
      const last = this.blocks.at(-1);
      if (more === '' || last?.kind !== 'call') continue;
      last.arguments += more;
      yield { kind: 'arguments', index: this.index, text: more };
    }
  }

  private *words(kind: 'thought' | 'text', text: string): Generator<BlockEvent> {
    if (text === '') return;
    if (!this.open || this.blocks.at(-1)?.kind !== kind) {
      yield* this.end();
      this.blocks.push({ kind, text: '' });
      this.open = true;
      yield { kind: `${kind}_begin`, index: this.index };
    }
    (this.blocks.at(-1) as Block & { text: string }).text += text;
    yield { kind, index: this.index, text };
  }

  *end(): Generator<BlockEvent> {
    if (!this.open) return;
    this.open = false;
    yield { kind: 'end', index: this.index };
  }

  private get index(): number {
    return this.blocks.length - 1;
  }
}
