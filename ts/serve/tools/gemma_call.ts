// One call as Gemma 4 writes it, call:name{key:value,…}, which is read when it is complete.
import type { CallWriter } from './call_writer';
import { CALL_CLOSE, CALL_OPEN, gemmaArguments, QUOTE } from './gemma_values';
import { begun } from './tag_forms';
import type { CallBody, CallTags } from './tagged_calls';
import type { ToolCallDelta } from './tool_parser';

export const GEMMA_TAGS: CallTags = { open: CALL_OPEN, close: CALL_CLOSE };

const NAME = '[^\\s{}()[\\]<>,"\']';
/** Some checkpoints leave the word out. */
const HEAD = new RegExp(`^\\s{0,64}(?:call)?:\\s{0,64}(${NAME}{1,256})\\s{0,64}(?=\\{)`);
const HEAD_BEGINS = new RegExp(
  `^\\s{0,64}(?:${begun('call:')}|(?:call)?:\\s{0,64}(?:${NAME}{1,256}\\s{0,64})?)$`,
);
const PAIRS: Readonly<Record<string, string>> = { '[': ']', '{': '}' };
const TAGS = [QUOTE, CALL_OPEN, CALL_CLOSE];

export class GemmaCall implements CallBody {
  done = false;
  failed = false;
  /** null: it goes on. */
  private name: string | null = null;
  private raw = '';
  private source = '';
  private buffer = '';
  private readonly open: string[] = [];
  /** What ends the text that is read; '': none is. */
  private quote: '' | '"' | typeof QUOTE = '';
  private escaped = false;
  /** Outside of texts: the last character that is no space. */
  private last = '';

  constructor(private readonly writer: CallWriter) {}

  push(text: string, calls: ToolCallDelta[]): string {
    this.buffer += text;
    if (this.name === null) this.readHead();
    if (this.name !== null) this.readArguments(this.name, calls);
    if (!this.done && !this.failed) return '';
    const left = this.buffer;
    this.buffer = '';
    return left;
  }

  rest(opening: string): string {
    return opening + this.raw + this.source + this.buffer;
  }

  private readHead(): void {
    const [head = '', name = ''] = HEAD.exec(this.buffer) ?? [];
    if (head === '') {
      this.failed = !HEAD_BEGINS.test(this.buffer);
      return;
    }
    this.name = name;
    this.raw = head;
    this.buffer = this.buffer.slice(head.length);
  }

  private readArguments(name: string, calls: ToolCallDelta[]): void {
    let at = 0;
    let ended = false;
    while (at < this.buffer.length && !ended && !this.failed) {
      const c = this.buffer[at] as string;
      const tag = c === '<' ? this.tagAt(at) : c;
      if (tag === null) break;
      ended = this.take(tag);
      if (!this.failed) at += tag.length;
    }
    this.source += this.buffer.slice(0, at);
    this.buffer = this.buffer.slice(at);
    if (!ended) return;
    const read = gemmaArguments(this.source);
    if (read === null) {
      this.failed = true;
      return;
    }
    calls.push(this.writer.begin(name), ...this.writer.more(read));
    this.done = true;
  }

  /** The tag that begins there, or else the character; null: it may be a tag. */
  private tagAt(at: number): string | null {
    const here = this.buffer.slice(at, at + Math.max(...TAGS.map(({ length }) => length)));
    const tag = TAGS.find((one) => here.startsWith(one));
    if (tag !== undefined) return tag;
    return TAGS.some((one) => one.startsWith(here)) ? null : '<';
  }

  /** Whether the arguments end with this character or tag. */
  private take(c: string): boolean {
    // Also in a text: one whose end is missing hides no call behind it.
    if (c === CALL_OPEN) this.failed = true;
    else if (this.quote !== '') this.takeOfText(c);
    else return this.takeOfValues(c);
    return false;
  }

  private takeOfText(c: string): void {
    if (this.escaped) this.escaped = false;
    else if (c === '\\' && this.quote === '"') this.escaped = true;
    else if (c === this.quote) {
      this.quote = '';
      this.last = c;
    }
  }

  private takeOfValues(c: string): boolean {
    if (c === QUOTE || (c === '"' && '{[,:'.includes(this.last))) this.quote = c;
    else if (c === '<' || c === CALL_CLOSE) this.failed = true;
    else if (c === '{' || c === '[') this.open.push(PAIRS[c] as string);
    else if (c === '}' || c === ']') {
      this.failed = this.open.pop() !== c;
      if (this.open.length === 0) return !this.failed;
    }
    if (c.trim() !== '') this.last = c;
    return false;
  }
}
