// The body of one call whose arguments are tags around plain text: what is read becomes JSON as its schema has it.
import type { CallWriter } from './call_writer';
import type { FunctionTool } from './families';
import { parameterTypes, type Schema } from './parameters';
import type { TagForm } from './tag_forms';
import type { CallBody } from './tagged_calls';
import type { ToolCallDelta } from './tool_parser';
import { typedJson } from './typed_value';

/** No end that is begun is longer. */
const MOST_HELD = 64;

/** Where what may become an end begins. */
function heldFrom(text: string, begins: RegExp): number {
  const looked = Math.max(0, text.length - MOST_HELD);
  return looked + text.slice(looked).search(begins);
}

export class TagBody implements CallBody {
  done = false;
  failed = false;
  private state: 'name' | 'between' | 'value' = 'name';
  private raw = '';
  private buffer = '';
  private parameters: Schema | undefined;
  private begun = false;
  private anyKey = false;
  /** Types of the value that is being read. */
  private types: ReadonlySet<string> = new Set();
  /** A value that is a text in any case is given out as it comes. */
  private streams = false;
  private value = '';
  /** Nothing of the value has come yet. */
  private first = true;

  constructor(
    private readonly form: TagForm,
    private readonly writer: CallWriter,
    private readonly tools: readonly FunctionTool[],
    /** It was opened by a tag before it, which is text if it fails. */
    private readonly opened: boolean,
  ) {}

  push(text: string, calls: ToolCallDelta[]): string {
    this.buffer += text;
    if (!this.begun) this.raw += text;
    let more = true;
    while (more && !this.done && !this.failed) {
      if (this.state === 'name') more = this.readName(calls);
      else if (this.state === 'between') more = this.readBetween(calls);
      else more = this.readValue(calls);
    }
    if (this.failed) return this.giveBack();
    if (!this.done) return '';
    const left = this.buffer;
    this.buffer = '';
    return left;
  }

  /** What the model was done with is complete, whatever tags it left out; a value that is cut off stays open, and is no JSON. */
  end(calls: ToolCallDelta[], cut: boolean): void {
    if (
      this.state === 'name' &&
      !cut &&
      this.tool(this.form.name.exec(this.buffer + this.form.close)?.[1]) !== null
    ) {
      this.buffer += this.form.close;
      this.readName(calls);
    }
    if (this.state === 'value' && (!cut || this.form.lastEnd?.test(this.buffer))) {
      this.endValue(calls);
      this.buffer = '';
    }
    // A parameter that has begun says that there is more.
    if (this.state === 'between' && (!cut || this.buffer.trim() === '')) this.finish(calls);
  }

  rest(opening: string): string {
    return this.begun ? '' : opening + this.raw;
  }

  private tool(name: string | undefined): FunctionTool['function'] | null {
    return this.tools.find(({ function: f }) => f.name === name)?.function ?? null;
  }

  /** A call may begin in what was none; without a tag before it, this one must not begin again. */
  private giveBack(): string {
    const taken = this.opened ? 0 : 1;
    const left = this.raw.slice(taken);
    this.raw = this.raw.slice(0, taken);
    return left;
  }

  /** Whether it can go on. */
  private readName(calls: ToolCallDelta[]): boolean {
    const [all = '', name = ''] = this.form.name.exec(this.buffer) ?? [];
    if (all === '') {
      this.failed = !this.form.nameBegins.test(this.buffer);
      return false;
    }
    this.buffer = this.buffer.slice(all.length);
    this.parameters = this.tool(name)?.parameters;
    calls.push(this.writer.begin(name));
    this.tell('{', calls);
    this.begun = true;
    this.state = 'between';
    return true;
  }

  /** What is between two parameters and belongs to neither is nobody's. */
  private readBetween(calls: ToolCallDelta[]): boolean {
    const { tag, tagBegins, end, key, keyBegins } = this.form;
    const at = this.buffer.search(tag);
    if (at < 0) {
      this.buffer = this.buffer.slice(heldFrom(this.buffer, tagBegins));
      return false;
    }
    this.buffer = this.buffer.slice(at);
    const ending = end.exec(this.buffer);
    if (ending !== null) {
      this.buffer = this.buffer.slice(ending[0].length);
      this.finish(calls);
      return false;
    }
    const [all = '', name = ''] = key.exec(this.buffer) ?? [];
    if (all !== '') {
      this.buffer = this.buffer.slice(all.length);
      this.beginValue(name.trim(), calls);
      return true;
    }
    if (keyBegins.test(this.buffer)) return false;
    this.buffer = this.buffer.slice(1);
    return true;
  }

  private beginValue(name: string, calls: ToolCallDelta[]): void {
    const said = parameterTypes(this.parameters, name);
    this.types = said.size === 0 && this.form.untyped === 'string' ? new Set(['string']) : said;
    this.streams = this.types.size === 1 && this.types.has('string');
    this.tell(`${this.anyKey ? ', ' : ''}${JSON.stringify(name)}: ${this.streams ? '"' : ''}`, calls);
    this.anyKey = true;
    this.value = '';
    this.first = true;
    this.state = 'value';
  }

  private readValue(calls: ToolCallDelta[]): boolean {
    const { ownLines, valueEnd, valueEndBegins } = this.form;
    if (this.buffer === '') return false;
    if (this.first && ownLines && this.buffer.startsWith('\n')) this.buffer = this.buffer.slice(1);
    this.first = false;
    const ending = valueEnd.exec(this.buffer);
    if (ending !== null) {
      this.take(this.buffer.slice(0, ending.index), calls);
      this.buffer = this.buffer.slice(ending.index + ending[0].length);
      this.endValue(calls);
      return true;
    }
    const held = heldFrom(this.buffer, valueEndBegins);
    this.take(this.buffer.slice(0, held), calls);
    this.buffer = this.buffer.slice(held);
    return false;
  }

  private take(text: string, calls: ToolCallDelta[]): void {
    if (this.streams) this.tell(JSON.stringify(text).slice(1, -1), calls);
    else this.value += text;
  }

  private endValue(calls: ToolCallDelta[]): void {
    this.tell(this.streams ? '"' : typedJson(this.value, this.types), calls);
    this.state = 'between';
  }

  private finish(calls: ToolCallDelta[]): void {
    this.tell('}', calls);
    this.done = true;
  }

  private tell(more: string, calls: ToolCallDelta[]): void {
    calls.push(...this.writer.more(more));
  }
}
