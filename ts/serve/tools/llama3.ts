// Llama 3: the whole response is {"name": …, "parameters": …}, several of them with ; between, perhaps after <|python_tag|>.
import { BodyParser } from './body_parser';
import { CallWriter } from './call_writer';
import type { ParsedText, ToolParser } from './tool_parser';

export const PYTHON_TAG = '<|python_tag|>';
/** What may stand in front of a call, and begins one. */
const ENDS = '<;{';
/** More of it is no beginning of a call. */
const OPENING = /^[\s;,]{0,256}(<\|python_tag\|>)?\s{0,256}/;

export class Llama3Parser implements ToolParser {
  private readonly writer = new CallWriter('call');
  private buffer = '';
  private state: 'start' | 'body' | 'between' | 'text' = 'start';
  /** Without a tag around it, JSON with a name alone may be an answer. */
  private body = new BodyParser(this.writer, false, ENDS);
  /** What comes before the body, in case it is no call. */
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
    const text = this.state === 'body' ? this.body.rest(this.opening) : '';
    const rest = this.state === 'between' ? '' : this.buffer;
    this.buffer = '';
    return { text: text + rest, calls: [] };
  }

  private step(out: ParsedText): void {
    if (this.state === 'text') {
      out.text += this.buffer;
      this.buffer = '';
    } else if (this.state === 'body') this.readBody(out);
    else this.readOpening();
  }

  private readOpening(): void {
    const [opening] = OPENING.exec(this.buffer) as RegExpExecArray;
    const rest = this.buffer.slice(opening.length);
    const separated = /[;,]/.test(opening);
    const mayBegin = this.state === 'between' || !separated;
    if (rest === '' || (mayBegin && !opening.includes(PYTHON_TAG) && PYTHON_TAG.startsWith(rest))) return;
    if (rest.startsWith('{') && mayBegin) {
      this.opening = opening;
      this.buffer = rest;
      this.body = new BodyParser(this.writer, false, ENDS);
      this.state = 'body';
    } else this.state = 'text';
  }

  private readBody(out: ParsedText): void {
    this.buffer = this.body.push(this.buffer, out.calls);
    if (this.body.done) this.state = 'between';
    if (!this.body.failed) return;
    const text = this.body.rest(this.opening);
    out.text += text;
    // Of a call that broke after it began, nothing more is told; another one may follow.
    this.state = text === '' ? 'between' : 'text';
  }
}
