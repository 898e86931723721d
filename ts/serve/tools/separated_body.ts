// One call in a section: its name, a tag, and its arguments as one JSON object, which are given out as they come.
import { ValueEnd } from './call_reader';
import type { CallWriter } from './call_writer';
import type { Section } from './sectioned_calls';
import type { CallBody } from './tagged_calls';
import type { ToolCallDelta } from './tool_parser';

export interface SeparatedForm extends Section {
  /** Up to the object of the arguments; its group: `name` of the tool, or what says it. */
  head: RegExp;
  /** What that says, where it is not the name: the tool, and the id of the call if it has one. `names`: of the tools there are; null: it is no call. */
  called?(written: string, names: readonly string[]): { name: string; id?: string } | null;
  /** Behind the object. */
  end: string;
}

/** In the place of arguments: there are none. */
const NONE = 'null';
/** More is no head. */
const LONGEST_HEAD = 1000;

export class SeparatedBody implements CallBody {
  done = false;
  failed = false;
  private state: 'head' | 'arguments' | 'end' = 'head';
  private buffer = '';
  private readonly value = new ValueEnd();

  constructor(
    private readonly form: SeparatedForm,
    private readonly writer: CallWriter,
    private readonly names: readonly string[],
  ) {}

  push(text: string, calls: ToolCallDelta[]): string {
    this.buffer += text;
    if (this.state === 'head') this.readHead(calls);
    if (this.state === 'arguments') this.readArguments(calls);
    if (this.state === 'end') this.readEnd();
    // A call may begin in what was none.
    if (!this.done && !this.failed) return '';
    const left = this.buffer;
    this.buffer = '';
    return left;
  }

  rest(opening: string): string {
    return this.state === 'head' ? opening + this.buffer : '';
  }

  private readHead(calls: ToolCallDelta[]): void {
    const { head, call, end } = this.form;
    const begun = this.buffer.slice(0, LONGEST_HEAD);
    const found = head.exec(begun);
    if (found === null) {
      this.failed = begun.length === LONGEST_HEAD || begun.includes(end) || begun.includes(call);
      return;
    }
    const { name: written = '' } = found.groups as { name?: string };
    const called = this.form.called === undefined ? { name: written } : this.form.called(written, this.names);
    if (called === null) {
      this.failed = true;
      return;
    }
    calls.push(this.writer.begin(called.name, called.id));
    this.buffer = this.buffer.slice(found[0].length);
    this.state = 'arguments';
    if (!this.buffer.startsWith(NONE)) return;
    calls.push(...this.writer.more('{}'));
    this.buffer = this.buffer.slice(NONE.length);
    this.state = 'end';
  }

  private readArguments(calls: ToolCallDelta[]): void {
    const { end } = this.form;
    let taken = 0;
    let ended = false;
    while (taken < this.buffer.length && !ended) {
      // Outside of a text it is no part of JSON: a bracket that is missing hides no call behind this one.
      if (!this.value.inString && this.buffer[taken] === end[0]) {
        const begun = this.buffer.slice(taken, taken + end.length);
        if (begun !== end && end.startsWith(begun)) break;
        ended = begun === end;
      }
      if (!ended) ended = this.value.take(this.buffer[taken++] as string) !== false;
    }
    calls.push(...this.writer.more(this.buffer.slice(0, taken)));
    this.buffer = this.buffer.slice(taken);
    if (ended) this.state = 'end';
  }

  /** The fence around arguments is closed here, where there is one. */
  private readEnd(): void {
    const { end } = this.form;
    const rest = this.buffer.replace(/^\s{0,64}`{0,3}\s{0,64}/, '');
    if (rest.startsWith(end)) this.buffer = rest.slice(end.length);
    else if (end.startsWith(rest)) return;
    this.done = true;
  }
}
