// LFM2 and OLMo 3: calls as Python writes them, [name(key="value"), …] or on lines of their own, or as JSON, [{"name": …, "arguments": {…}}, …].
import { BodyParser } from './body_parser';
import type { CallWriter } from './call_writer';
import { NAME, PythonCall } from './python_call';
import type { CallBody, CallTags } from './tagged_calls';
import type { ToolCallDelta } from './tool_parser';

export const LFM2_TAGS: CallTags = { open: '<|tool_call_start|>', close: '<|tool_call_end|>' };
export const OLMO3_TAGS: CallTags = { open: '<function_calls>', close: '</function_calls>' };

/** In JSON: what another call begins with, and what ends the list. */
const JSON_ENDS = '{]<';

export class PythonList implements CallBody {
  done = false;
  failed = false;
  private buffer = '';
  /** What has been read and is no part of a call that was given out. */
  private raw = '';
  private bracket = false;
  private called = false;
  private python: PythonCall | null = null;
  private json: BodyParser | null = null;

  /** `tags`: around the list. */
  constructor(
    private readonly writer: CallWriter,
    private readonly tags: CallTags,
  ) {}

  push(text: string, calls: ToolCallDelta[]): string {
    this.buffer += text;
    let before = '';
    while (!this.done && !this.failed && this.state !== before) {
      before = this.state;
      if (this.json !== null) this.readJson(this.json, calls);
      else if (this.python !== null) this.readPython(this.python, calls);
      else this.readList();
    }
    if (!this.done && !this.failed) return '';
    const left = this.buffer;
    this.buffer = '';
    return left;
  }

  rest(opening: string): string {
    const read = this.raw + (this.python?.source ?? '') + (this.json?.rest('') ?? '') + this.buffer;
    return this.called ? read : opening + read;
  }

  private get state(): string {
    return `${this.buffer.length} ${this.json !== null} ${this.python !== null}`;
  }

  private readList(): void {
    const rest = this.buffer.replace(this.called ? /^[\s,]+/ : /^\s+/, '');
    if (!this.called) this.raw += this.buffer.slice(0, this.buffer.length - rest.length);
    this.buffer = rest;
    const c = rest[0];
    if (c === undefined) return;
    if (c === '[' && !this.bracket && !this.called) {
      this.bracket = true;
      this.raw += c;
      this.buffer = rest.slice(1);
    } else if (c === '{') {
      this.json = new BodyParser(this.writer, true, JSON_ENDS);
    } else if (NAME.test(c)) {
      this.python = new PythonCall();
    } else if (this.called) {
      this.done = true;
      if (c === ']' && this.bracket) this.buffer = rest.slice(1);
    } else this.failed = true;
  }

  private readPython(call: PythonCall, calls: ToolCallDelta[]): void {
    let taken = 0;
    let ended: boolean | 'failed' = false;
    while (taken < this.buffer.length && ended === false) {
      const c = this.buffer[taken] as string;
      // Also in a text: a quotation mark that is missing hides no call behind this one.
      const tag = c === '<' ? this.tagAt(taken) : false;
      if (tag === 'begun') break;
      ended = tag ? 'failed' : call.take(c);
      if (ended !== 'failed') taken++;
    }
    this.buffer = this.buffer.slice(taken);
    if (ended === false) return;
    this.python = null;
    const written = ended === 'failed' ? null : call.arguments;
    if (written === null) {
      this.raw += call.source;
      this.failed = true;
      return;
    }
    calls.push(this.writer.begin(call.name), ...this.writer.more(written));
    this.begun();
  }

  /** Whether one of the tags around the list stands there; begun: it may. */
  private tagAt(at: number): boolean | 'begun' {
    const tags = [this.tags.open, this.tags.close];
    const here = this.buffer.slice(at, at + Math.max(...tags.map(({ length }) => length)));
    if (tags.some((tag) => here.startsWith(tag))) return true;
    return tags.some((tag) => tag.startsWith(here)) ? 'begun' : false;
  }

  private readJson(body: BodyParser, calls: ToolCallDelta[]): void {
    this.buffer = body.push(this.buffer, calls);
    if (!body.done && !body.failed) return;
    const text = body.failed ? body.rest('') : '';
    this.json = null;
    if (text !== '') {
      this.raw += text;
      this.failed = true;
    } else this.begun();
  }

  private begun(): void {
    this.called = true;
    this.raw = '';
  }
}
