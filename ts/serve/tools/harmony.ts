// gpt-oss: messages of the harmony format (OpenAI, "Harmony response format"), <|start|>assistant<|channel|>…<|message|>…<|end|>, whose
// channels say what is thought (analysis), called (commentary to=functions.NAME) and answered (final). The prompt ends with <|start|>assistant.
import { heldBack } from '../text/stop_texts';
import { CallWriter } from './call_writer';
import type { ParsedText, ToolParser } from './tool_parser';

export const CHANNEL = '<|channel|>';
export const MESSAGE = '<|message|>';
export const CONSTRAIN = '<|constrain|>';
const CALL = '<|call|>';
export const START = '<|start|>';
export const END = '<|end|>';
export const RETURN = '<|return|>';
/** What the tokenizer has special tokens for. */
export const HARMONY_TAGS: readonly string[] = [START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];

const FUNCTIONS = 'functions.';
/** What ends the words of a message. Where its end is missing the next one begins. */
const ENDS = [END, CALL, RETURN, START, CHANNEL];
/** What the head of a message begins with; models write the recipient before the channel or after it. */
const HEADS = [START, CHANNEL, CONSTRAIN, MESSAGE, 'to='];
/** A longer head is none. */
const LONGEST_HEAD = 1000;

interface Message {
  kind: 'text' | 'reasoning' | 'call';
  /** Some of its words have been given out. */
  written: boolean;
  /** Of a call: what may yet be null, which stands for no arguments. */
  held: string;
}

const opened = (kind: Message['kind'], written = false): Message => ({ kind, written, held: '' });
const NONE = 'null';
/** With the white space around it. */
const LONGEST_NONE = 256;

export class HarmonyParser implements ToolParser {
  private readonly writer = new CallWriter('call');
  private buffer = '';
  /** Kinds of which there are words: further messages of one begin on a line of their own. */
  private readonly said = new Set<Message['kind']>();
  /** Whose words are read; null: a head is. */
  private message: Message | null = null;

  /** `tools`: names of those that may be called, which models also write without their namespace; null: none may, and calls are text. */
  constructor(private readonly tools: readonly string[] | null) {}

  push(text: string): ParsedText {
    this.buffer += text;
    const out: Parsed = { text: '', reasoning: '', calls: [] };
    let before = '';
    while (this.state !== before) {
      before = this.state;
      if (this.message === null) this.readHead(out);
      else this.readWords(this.message, out);
    }
    return out;
  }

  end(cut = false): ParsedText {
    const out: Parsed = { text: '', reasoning: '', calls: [] };
    const rest = this.buffer;
    this.buffer = '';
    if (this.message !== null) {
      this.give(this.message, rest, out);
      if (!cut) this.close(this.message, out);
    } else if (!/^\s*(<\||$)/.test(rest)) out.text += rest;
    this.message = null;
    return out;
  }

  private get state(): string {
    return `${this.buffer.length} ${this.message === null}`;
  }

  private readHead(out: Parsed): void {
    const { buffer } = this;
    const begun = buffer.trimStart();
    const blank = buffer.length - begun.length >= LONGEST_HEAD;
    if (!blank && HEADS.some((head) => head.startsWith(begun))) return;
    const at = buffer.indexOf(MESSAGE);
    if (blank || !HEADS.some((head) => begun.startsWith(head))) this.message = opened('text');
    else if (at >= 0 && at <= LONGEST_HEAD) {
      this.buffer = buffer.slice(at + MESSAGE.length);
      this.message = this.open(buffer.slice(0, at), out);
    } else if (buffer.length >= LONGEST_HEAD + MESSAGE.length) {
      this.buffer = buffer.slice(LONGEST_HEAD);
      this.message = opened('text');
      this.give(this.message, buffer.slice(0, LONGEST_HEAD), out);
    }
  }

  private open(head: string, out: Parsed): Message {
    const [, recipient = ''] = /(?:^|\s|>)to=([^\s<]+)/.exec(head) ?? [];
    const [, channel = ''] = /<\|channel\|>\s*([\w-]+)/.exec(head) ?? [];
    const name = recipient.startsWith(FUNCTIONS) ? recipient.slice(FUNCTIONS.length) : recipient;
    const toTool = recipient !== name || this.tools?.includes(name) === true;
    if (this.tools !== null && toTool && name !== '') {
      out.calls.push(this.writer.begin(name));
      return opened('call');
    }
    // What looks like a call and is none is not lost.
    if (toTool) {
      out.text += head + MESSAGE;
      return opened('text', true);
    }
    return opened(channel === 'analysis' ? 'reasoning' : 'text');
  }

  private readWords(message: Message, out: Parsed): void {
    const { buffer } = this;
    const found = ENDS.map((tag) => ({ tag, at: buffer.indexOf(tag) })).filter(({ at }) => at >= 0);
    if (found.length === 0) {
      const held = Math.max(...ENDS.map((tag) => heldBack(buffer, tag)));
      this.give(message, buffer.slice(0, buffer.length - held), out);
      this.buffer = buffer.slice(buffer.length - held);
      return;
    }
    const { tag, at } = found.reduce((a, b) => (b.at < a.at ? b : a));
    this.give(message, buffer.slice(0, at), out);
    this.close(message, out);
    this.message = null;
    // The head of the next one is read from its beginning.
    this.buffer = buffer.slice(tag === START || tag === CHANNEL ? at : at + tag.length);
  }

  private give(message: Message, words: string, out: Parsed): void {
    if (words === '') return;
    const { kind } = message;
    if (kind === 'call') {
      this.giveArguments(message, words, out);
      return;
    }
    const line = !message.written && this.said.has(kind) ? '\n' : '';
    message.written = true;
    this.said.add(kind);
    if (kind === 'text') out.text += line + words;
    else out.reasoning += line + words;
  }

  private giveArguments(message: Message, words: string, out: Parsed): void {
    const all = message.held + words;
    message.held = '';
    const short = all.length <= LONGEST_NONE;
    if (!message.written && short && NONE.startsWith(all.trim())) message.held = all;
    else {
      message.written = true;
      out.calls.push(...this.writer.more(all));
    }
  }

  private close({ kind, written, held }: Message, out: Parsed): void {
    if (kind !== 'call' || written) return;
    out.calls.push(...this.writer.more(['', NONE].includes(held.trim()) ? '{}' : held));
  }
}

type Parsed = Required<ParsedText>;
