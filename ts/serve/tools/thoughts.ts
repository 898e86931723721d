// What a model thinks between two tags, apart from the rest of its response, which another parser reads.
import { heldBack } from '../text/stop_texts';
import type { ParsedText, ToolParser } from './tool_parser';

/** How a family writes thoughts. */
export interface ThoughtTags {
  open: string;
  /** Behind the tag that opens a thought; models also leave it out. */
  label: string;
  close: string;
  /** What ends a thought that is not closed, and is no part of it. */
  call: string;
}

/** A response without calls and thoughts. */
export class PlainText implements ToolParser {
  push(text: string): ParsedText {
    return { text, calls: [] };
  }

  end(): ParsedText {
    return { text: '', calls: [] };
  }
}

type Parsed = Required<ParsedText>;

/** Thoughts may come anywhere but within a call. Line breaks around them are none of them, and each but the first begins on a line of its own. */
export class ThoughtParser implements ToolParser {
  private buffer = '';
  private thinking: boolean;
  /** The label of the thought may yet come. */
  private labelled = false;
  /** Words of the thought, or of an earlier one, have been given out. */
  private written = false;
  private said = false;

  /** `opened`: the response begins within a thought. */
  constructor(
    private readonly inner: ToolParser,
    private readonly tags: ThoughtTags,
    opened = false,
  ) {
    this.thinking = opened;
  }

  push(text: string): ParsedText {
    this.buffer += text;
    const out: Parsed = { text: '', reasoning: '', calls: [] };
    let before = '';
    while (this.state !== before) {
      before = this.state;
      if (this.thinking) this.readThought(out);
      else this.readRest(out);
    }
    return out;
  }

  end(cut = false): ParsedText {
    const out: Parsed = { text: '', reasoning: '', calls: [] };
    const rest = this.buffer;
    this.buffer = '';
    if (!this.thinking) this.give(rest, out);
    else if (!this.labelled || !this.tags.label.startsWith(rest)) this.think(rest, out);
    add(this.inner.end(cut), out);
    return out;
  }

  private get state(): string {
    return `${this.buffer.length} ${this.thinking} ${this.labelled}`;
  }

  private readRest(out: Parsed): void {
    const { open, close } = this.tags;
    const found = this.first([open, close]);
    if (found === null) {
      this.give(this.take(this.buffer.length - this.heldOf([open, close])), out);
      return;
    }
    this.give(this.take(found.at), out);
    const tag = this.take(found.tag.length);
    if (this.inner.inside) this.give(tag, out);
    else if (tag === open) {
      this.thinking = true;
      this.labelled = true;
      this.written = false;
    }
  }

  private readThought(out: Parsed): void {
    const { close, call } = this.tags;
    if (this.labelled && !this.readLabel()) return;
    const found = this.first([close, call]);
    if (found === null) {
      // What the template writes before the tag that closes a thought.
      const held = this.heldOf([close, call]) || (this.buffer.endsWith('\n') ? 1 : 0);
      const end = this.buffer.length - held;
      this.think(this.take(end > 0 && this.buffer[end - 1] === '\n' ? end - 1 : end), out);
      return;
    }
    const words = this.take(found.at);
    this.think(words.endsWith('\n') ? words.slice(0, -1) : words, out);
    if (found.tag === close) this.take(close.length);
    this.thinking = false;
  }

  /** Whether it is clear if there is one. */
  private readLabel(): boolean {
    const { label, close, call } = this.tags;
    const bare = label.trimEnd();
    if (this.buffer.startsWith(label)) this.take(label.length);
    else if (this.buffer.startsWith(bare)) {
      const behind = this.buffer.slice(bare.length);
      if ([label.slice(bare.length), close, call].some((one) => one.startsWith(behind))) return false;
      if ([close, call].some((one) => behind.startsWith(one))) this.take(bare.length);
    } else if (label.startsWith(this.buffer)) return false;
    this.labelled = false;
    return true;
  }

  private think(words: string, out: Parsed): void {
    if (words === '') return;
    out.reasoning += !this.written && this.said ? `\n${words}` : words;
    this.written = true;
    this.said = true;
  }

  private give(text: string, out: Parsed): void {
    if (text !== '') add(this.inner.push(text), out);
  }

  private take(count: number): string {
    const taken = this.buffer.slice(0, count);
    this.buffer = this.buffer.slice(count);
    return taken;
  }

  private first(tags: readonly string[]): { tag: string; at: number } | null {
    const found = tags.map((tag) => ({ tag, at: this.buffer.indexOf(tag) })).filter(({ at }) => at >= 0);
    return found.length === 0 ? null : found.reduce((a, b) => (b.at < a.at ? b : a));
  }

  private heldOf(tags: readonly string[]): number {
    return Math.max(...tags.map((tag) => heldBack(this.buffer, tag)));
  }
}

function add({ text, calls, reasoning = '' }: ParsedText, out: Parsed): void {
  out.text += text;
  out.reasoning += reasoning;
  out.calls.push(...calls);
}
