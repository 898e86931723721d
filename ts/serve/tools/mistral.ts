// Mistral: [TOOL_CALLS] [{"name": …, "arguments": …}, …], and since its eleventh tokenizer [TOOL_CALLS]name[ARGS]{…}, repeated.
import { heldBack } from '../text/stop_texts';
import { BodyParser } from './body_parser';
import { ValueEnd } from './call_reader';
import { CallWriter } from './call_writer';
import type { ParsedText, ToolParser } from './tool_parser';

export const TOOL_CALLS = '[TOOL_CALLS]';
/** In a list: what another call begins with, and what ends it. */
const ENDS = '{]';
/** More is no name, with what may stand behind it. */
const LONGEST_HEAD = 1000;
/** What the tokenizer has special tokens for. */
export const MISTRAL_TAGS: readonly string[] = [TOOL_CALLS, '[ARGS]', '[CALL_ID]'];

export class MistralParser implements ToolParser {
  private readonly writer = new CallWriter('nine');
  private buffer = '';
  private state: 'text' | 'opened' | 'list' | 'body' | 'name' | 'arguments' = 'text';
  private body = new BodyParser(this.writer, true, ENDS);
  private value = new ValueEnd('');
  /** What a call or a list of them is opened with, as long as none has begun. */
  private opening = '';

  push(text: string): ParsedText {
    this.buffer += text;
    const out: ParsedText = { text: '', calls: [] };
    let before = '';
    do {
      before = `${this.state}${this.buffer.length}`;
      this.step(out);
    } while (before !== `${this.state}${this.buffer.length}`);
    return out;
  }

  end(): ParsedText {
    const { state, opening } = this;
    const calls = state === 'arguments' ? this.writer.more(this.buffer) : [];
    const began = (state === 'list' && opening === '') || state === 'arguments';
    let text = began ? '' : this.buffer;
    if (state === 'body') text = this.body.rest(opening) + text;
    else if (!began && state !== 'text') text = opening + text;
    this.buffer = '';
    return { text, calls };
  }

  private step(out: ParsedText): void {
    if (this.state === 'text') this.readText(out);
    else if (this.state === 'opened') this.readOpening();
    else if (this.state === 'list') this.readList(out);
    else if (this.state === 'body') this.readBody(out);
    else if (this.state === 'name') this.readName(out);
    else this.readArguments(out);
  }

  private readText(out: ParsedText): void {
    const at = this.buffer.indexOf(TOOL_CALLS);
    const end = at >= 0 ? at : this.buffer.length - heldBack(this.buffer, TOOL_CALLS);
    out.text += this.buffer.slice(0, end);
    this.buffer = this.buffer.slice(at >= 0 ? end + TOOL_CALLS.length : end);
    if (at < 0) return;
    this.opening = TOOL_CALLS;
    this.state = 'opened';
  }

  private readOpening(): void {
    const rest = this.buffer.trimStart();
    this.opening += this.buffer.slice(0, this.buffer.length - rest.length);
    this.buffer = rest;
    if (rest === '') return;
    const list = rest.startsWith('[');
    if (list) this.opening += '[';
    this.state = list ? 'list' : 'name';
    this.buffer = list ? rest.slice(1) : rest;
  }

  private readList(out: ParsedText): void {
    const rest = this.buffer.replace(/^[\s,]+/, '');
    const empty = this.opening !== '';
    if (empty) this.opening += this.buffer.slice(0, this.buffer.length - rest.length);
    this.buffer = rest;
    if (rest.startsWith('{')) {
      this.body = new BodyParser(this.writer, true, ENDS);
      this.state = 'body';
    } else if (rest !== '') {
      this.state = 'text';
      if (empty) out.text += this.opening;
      else if (rest.startsWith(']')) this.buffer = rest.slice(1);
    }
  }

  private readBody(out: ParsedText): void {
    this.buffer = this.body.push(this.buffer, out.calls);
    const text = this.body.failed ? this.body.rest(this.opening) : '';
    out.text += text;
    if (text !== '') this.state = 'text';
    // Of a call that broke after it began, nothing more is told; another one may follow.
    else if (this.body.done || this.body.failed) {
      this.state = 'list';
      this.opening = '';
    }
  }

  private readName(out: ParsedText): void {
    const head = this.buffer.slice(0, LONGEST_HEAD);
    const at = head.indexOf('{');
    if (at < 0 && head.length < LONGEST_HEAD) return;
    const [first = '', ...tagged] = head.slice(0, at).split(/\[(?:ARGS|CALL_ID)\]/);
    const name = first.trim();
    // Tools of MCP servers may have any name; without a tag behind it, it may also be prose.
    if (at >= 0 && (tagged.length > 0 ? /^\S{1,256}$/ : /^[\w.-]{1,256}$/).test(name)) {
      out.calls.push(this.writer.begin(name));
      this.value = new ValueEnd('');
      this.state = 'arguments';
      this.buffer = this.buffer.slice(at);
    } else {
      out.text += this.opening;
      this.state = 'text';
    }
  }

  private readArguments(out: ParsedText): void {
    let taken = 0;
    let ended = false;
    while (taken < this.buffer.length && !ended) {
      // Outside of a text it is no part of JSON: a bracket that is missing hides no call behind this one.
      if (!this.value.inString && this.buffer[taken] === TOOL_CALLS[0]) {
        const begun = this.buffer.slice(taken, taken + TOOL_CALLS.length);
        if (begun !== TOOL_CALLS && TOOL_CALLS.startsWith(begun)) break;
        ended = begun === TOOL_CALLS;
      }
      if (!ended) ended = this.value.take(this.buffer[taken++] as string) !== false;
    }
    out.calls.push(...this.writer.more(this.buffer.slice(0, taken)));
    this.buffer = this.buffer.slice(taken);
    if (ended) this.state = 'text';
  }
}
