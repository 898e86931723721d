// LFM2 and OLMo 3: calls as Python writes them, [name(key="value"), …] or on lines of their own, or as JSON, [{"name": …, "arguments": {…}}, …].
import { BodyParser } from './body_parser';
import type { CallWriter } from './call_writer';
import { pythonArguments } from './python_literals';
import type { CallBody, CallTags } from './tagged_calls';
import type { ToolCallDelta } from './tool_parser';

export const LFM2_TAGS: CallTags = { open: '<|tool_call_start|>', close: '<|tool_call_end|>' };
export const OLMO3_TAGS: CallTags = { open: '<function_calls>', close: '</function_calls>' };

const NAME = /[\w.$-]|[^\0-\x7f]/;
const LONGEST_NAME = 256;
const PAIRS: Readonly<Record<string, string>> = { '(': ')', '[': ']', '{': '}' };
/** In JSON: what another call begins with, and what ends the list. */
const JSON_ENDS = '{]<';

/** A call, character by character. Its end is that of its brackets; what is between them is read when it is complete. */
class PythonCall {
  source = '';
  /** Where the arguments begin; 0: the name goes on. */
  private begin = 0;
  private readonly open: string[] = [];
  /** Of a text: one quotation mark or three. '' outside of texts. */
  private quote = '';
  private escaped = false;
  /** Marks in a row that may end a text, or begin one of three. */
  private marks = 0;

  /** Whether this character ends the call (true), cannot be a part of it ('failed'), or it goes on. */
  take(c: string): boolean | 'failed' {
    if (this.begin === 0) {
      if (c !== '(' ? !NAME.test(c) || this.source.length === LONGEST_NAME : this.source === '')
        return 'failed';
      if (c === '(') this.begin = this.source.length + 1;
      if (c === '(') this.open.push(')');
      this.source += c;
      return false;
    }
    const ended = this.takeOfArguments(c);
    if (ended !== 'failed') this.source += c;
    return ended;
  }

  get name(): string {
    return this.source.slice(0, this.begin - 1);
  }

  /** JSON; null: they are no literals. */
  get arguments(): string | null {
    return pythonArguments(this.source.slice(this.begin, -1));
  }

  private takeOfArguments(c: string): boolean | 'failed' {
    if (this.quote !== '') {
      const again = this.takeOfText(c);
      if (!again) return false;
    }
    if (c === '"' || c === "'") {
      this.quote = c;
      this.marks = 1;
    } else if (c === '<') return 'failed';
    else if (Object.hasOwn(PAIRS, c)) this.open.push(PAIRS[c] as string);
    else if (')]}'.includes(c)) {
      if (this.open.pop() !== c) return 'failed';
      return this.open.length === 0;
    }
    return false;
  }

  /** Whether the character stands behind the text: a text without characters is seen to end there. */
  private takeOfText(c: string): boolean {
    const mark = this.quote[0] as string;
    const begins = this.marks > 0 && this.quote.length === 1;
    if (begins) {
      // One mark has come, or two: a third one begins a text between three of them.
      if (c === mark) {
        this.marks++;
        if (this.marks === 3) {
          this.quote = mark.repeat(3);
          this.marks = 0;
        }
        return false;
      }
      const empty = this.marks === 2;
      this.marks = 0;
      if (empty) {
        this.quote = '';
        return true;
      }
    }
    if (this.escaped) this.escaped = false;
    else if (c === '\\') {
      this.escaped = true;
      this.marks = 0;
    } else if (c !== mark) this.marks = 0;
    else if (this.quote.length === 1 || ++this.marks === 3) {
      this.quote = '';
      this.marks = 0;
    }
    return false;
  }
}

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
