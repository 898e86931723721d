// DeepSeek, Kimi K2, MiniMax-M2 and Seed-OSS: all calls of a response stand in one section between two tags; what one of them is, a body reads.
import { heldBack } from '../text/stop_texts';
import { CallWriter } from './call_writer';
import type { CallBody } from './tagged_calls';
import type { ParsedText, ToolParser } from './tool_parser';

/** The tags around a section, and what each call in it begins with. */
export interface Section {
  open: string;
  call: string;
  close: string;
}

export class SectionedCallsParser implements ToolParser {
  private readonly writer = new CallWriter('call');
  private buffer = '';
  private state: 'text' | 'section' | 'body' = 'text';
  private body: CallBody | null = null;
  /** What has opened the section, as long as none of its calls is complete, and the call. */
  private opening = '';
  private called = false;
  /** White space behind a section, which belongs to the text only if text follows; null: something else has come. */
  private gap: string | null = null;

  /** Models write calls without a section around them, too. */
  constructor(
    private readonly section: Section,
    private readonly newBody: (writer: CallWriter) => CallBody,
  ) {}

  push(text: string): ParsedText {
    this.buffer += text;
    const out: ParsedText = { text: '', calls: [] };
    let before = '';
    do {
      before = `${this.state}${this.buffer.length}`;
      if (this.state === 'text') this.readText(out);
      else if (this.state === 'section') this.readSection(out);
      else this.readBody(this.body as CallBody, out);
    } while (before !== `${this.state}${this.buffer.length}`);
    return out;
  }

  end(cut = false): ParsedText {
    const out: ParsedText = { text: '', calls: [] };
    if (this.state === 'body') {
      this.body?.end?.(out.calls, cut);
      out.text = this.body?.rest(this.opening) ?? '';
    } else if (this.state === 'text') out.text = this.buffer;
    // Behind a call it is a part of a tag.
    else if (!this.called) out.text = this.opening + this.buffer;
    this.buffer = '';
    return out;
  }

  private readText(out: ParsedText): void {
    const { open, call } = this.section;
    if (this.gap !== null) {
      const rest = this.buffer.trimStart();
      this.gap += this.buffer.slice(0, this.buffer.length - rest.length);
      this.buffer = rest;
      if ([open, call].some((tag) => tag.startsWith(rest))) return;
      if (![open, call].some((tag) => rest.startsWith(tag))) out.text += this.gap;
      this.gap = null;
    }
    const found = [open, call].map((tag) => this.buffer.indexOf(tag)).filter((at) => at >= 0);
    const held = Math.max(heldBack(this.buffer, open), heldBack(this.buffer, call));
    const end = found.length > 0 ? Math.min(...found) : this.buffer.length - held;
    out.text += this.buffer.slice(0, end);
    this.buffer = this.buffer.slice(end);
    if (found.length === 0) return;
    this.opening = this.buffer.startsWith(open) ? open : '';
    this.buffer = this.buffer.slice(this.opening.length);
    this.called = false;
    this.state = 'section';
  }

  private readSection(out: ParsedText): void {
    const { call, close } = this.section;
    const rest = this.buffer.trimStart();
    this.opening += this.buffer.slice(0, this.buffer.length - rest.length);
    this.buffer = rest;
    if (rest.startsWith(call)) {
      this.opening += call;
      this.buffer = rest.slice(call.length);
      this.body = this.newBody(this.writer);
      this.state = 'body';
    } else if (this.called && rest.startsWith(close)) {
      this.buffer = rest.slice(close.length);
      this.gap = '';
      this.state = 'text';
    } else if (!call.startsWith(rest) && !(this.called && close.startsWith(rest))) {
      out.text += this.opening;
      this.state = 'text';
    }
  }

  private readBody(body: CallBody, out: ParsedText): void {
    this.buffer = body.push(this.buffer, out.calls);
    if (body.failed) {
      out.text += body.rest(this.opening);
      this.state = 'text';
    } else if (body.done) {
      this.called = true;
      this.opening = '';
      this.state = 'section';
    }
  }
}
