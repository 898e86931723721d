// Hermes and Qwen: <tool_call>{"name": …, "arguments": …}</tool_call>, any number of times, among text.
import { heldBack } from '../text/stop_texts';
import { BodyParser } from './body_parser';
import { CallWriter } from './call_writer';
import type { ParsedText, ToolParser } from './tool_parser';

const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';

export class HermesParser implements ToolParser {
  private readonly writer = new CallWriter('call');
  private buffer = '';
  private body: BodyParser | null = null;
  /** After a call: white space up to the closing tag is nobody's. */
  private closing = false;
  /** Right after a call: white space belongs to the text only if text follows. */
  private gap = false;

  push(text: string): ParsedText {
    this.buffer += text;
    const out: ParsedText = { text: '', calls: [] };
    let [before, closing] = [-1, false];
    while (this.buffer.length !== before || this.closing !== closing) {
      [before, closing] = [this.buffer.length, this.closing];
      if (this.body !== null) this.readBody(this.body, out);
      else if (this.closing) this.readClosing();
      else this.readText(out);
    }
    return out;
  }

  end(): ParsedText {
    const rest = this.body?.rest(OPEN) ?? '';
    const left = this.closing ? '' : this.gap ? this.buffer.trim() : this.buffer;
    const text = rest + left;
    this.buffer = '';
    return { text, calls: [] };
  }

  private readText(out: ParsedText): void {
    if (this.gap) {
      const rest = this.buffer.trimStart();
      if (OPEN.startsWith(rest)) return;
      if (rest.startsWith(OPEN)) this.buffer = rest;
      this.gap = false;
    }
    const at = this.buffer.indexOf(OPEN);
    const end = at >= 0 ? at : this.buffer.length - heldBack(this.buffer, OPEN);
    out.text += this.buffer.slice(0, end);
    this.buffer = this.buffer.slice(at >= 0 ? end + OPEN.length : end);
    if (at >= 0) this.body = new BodyParser(this.writer);
  }

  private readBody(body: BodyParser, out: ParsedText): void {
    this.buffer = body.push(this.buffer, out.calls);
    if (body.failed) {
      const raw = body.rest(OPEN);
      out.text += raw;
      this.body = null;
      // Of a call that broke after it began, nothing more is told.
      this.closing = raw === '';
    } else if (body.done) {
      this.body = null;
      this.closing = true;
    }
  }

  private readClosing(): void {
    const rest = this.buffer.trimStart();
    if (rest.startsWith(CLOSE)) {
      this.buffer = rest.slice(CLOSE.length);
      this.closing = false;
      this.gap = true;
    } else if (!CLOSE.startsWith(rest)) {
      this.buffer = rest;
      this.closing = false;
    }
  }
}
