// Hermes, Qwen, GLM, LFM2, OLMo 3 and Gemma 4: calls between two tags, any number of times, among text; what is between the tags, a body reads.
import { heldBack } from '../text/stop_texts';
import { CallWriter } from './call_writer';
import type { ParsedText, ToolCallDelta, ToolParser } from './tool_parser';

export const OPEN = '<tool_call>';
export const CLOSE = '</tool_call>';

export interface CallTags {
  open: string;
  close: string;
}

/** Reads one call. */
export interface CallBody {
  readonly done: boolean;
  /** It is no call. */
  readonly failed: boolean;
  /** Returns what it has not taken, and adds to `calls`. */
  push(text: string, calls: ToolCallDelta[]): string;
  /** What is text after all: everything, behind what opened it, when no part has been given out as a call. */
  rest(opening: string): string;
  /** Nothing follows; `cut`: the model would have gone on. */
  end?(calls: ToolCallDelta[], cut: boolean): void;
}

export class TaggedCallsParser implements ToolParser {
  private readonly writer = new CallWriter('call');
  private buffer = '';
  private body: CallBody | null = null;
  /** What opened the body, and is no part of it. */
  private opening = '';
  /** After a call: white space up to the closing tag is nobody's. */
  private closing = false;
  /** White space right after a call, which belongs to the text only if text follows; null: something else has come. */
  private gap: string | null = null;

  /** `bare`: what a body begins with that models also write without the tag before it. */
  constructor(
    private readonly newBody: (writer: CallWriter, opening: string) => CallBody,
    private readonly bare: string | null = null,
    private readonly tags: CallTags = { open: OPEN, close: CLOSE },
  ) {}

  push(text: string): ParsedText {
    this.buffer += text;
    const out: ParsedText = { text: '', calls: [] };
    let before = '';
    while (this.state !== before) {
      before = this.state;
      if (this.body !== null) this.readBody(this.body, out);
      else if (this.closing) this.readClosing();
      else this.readText(out);
    }
    return out;
  }

  end(cut = false): ParsedText {
    const calls: ToolCallDelta[] = [];
    this.body?.end?.(calls, cut);
    const rest = this.body?.rest(this.opening) ?? '';
    const text = rest + (this.closing ? '' : this.buffer);
    this.buffer = '';
    return { text, calls };
  }

  get inside(): boolean {
    return this.body !== null;
  }

  private get state(): string {
    return `${this.buffer.length} ${this.closing} ${this.inside}`;
  }

  private get openings(): string[] {
    return this.bare === null ? [this.tags.open] : [this.tags.open, this.bare];
  }

  private readText(out: ParsedText): void {
    if (this.gap !== null) {
      const rest = this.buffer.trimStart();
      this.gap += this.buffer.slice(0, this.buffer.length - rest.length);
      this.buffer = rest;
      if (this.openings.some((opening) => opening.startsWith(rest))) return;
      if (!this.openings.some((opening) => rest.startsWith(opening))) out.text += this.gap;
      this.gap = null;
    }
    const found = this.openings.map((opening) => this.buffer.indexOf(opening)).filter((at) => at >= 0);
    const held = Math.max(...this.openings.map((opening) => heldBack(this.buffer, opening)));
    const end = found.length > 0 ? Math.min(...found) : this.buffer.length - held;
    out.text += this.buffer.slice(0, end);
    this.buffer = this.buffer.slice(end);
    if (found.length === 0) return;
    this.opening = this.buffer.startsWith(this.tags.open) ? this.tags.open : '';
    this.buffer = this.buffer.slice(this.opening.length);
    this.body = this.newBody(this.writer, this.opening);
  }

  private readBody(body: CallBody, out: ParsedText): void {
    this.buffer = body.push(this.buffer, out.calls);
    if (body.failed) {
      const raw = body.rest(this.opening);
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
    const { close } = this.tags;
    const rest = this.buffer.trimStart();
    this.buffer = rest;
    if (rest.startsWith(close)) {
      this.buffer = rest.slice(close.length);
      this.closing = false;
      this.gap = '';
    } else if (!close.startsWith(rest)) this.closing = false;
  }
}
