// The body of one call inside a response: its deltas as they come, or its text when it is no call.
import { CallReader } from './call_reader';
import type { CallWriter } from './call_writer';
import type { ToolCallDelta } from './tool_parser';

export class BodyParser {
  private readonly reader: CallReader;
  private raw = '';
  private begun = false;

  /** `bare`: as in CallReader. */
  constructor(
    private readonly writer: CallWriter,
    bare = true,
  ) {
    this.reader = new CallReader(bare);
  }

  get done(): boolean {
    return this.reader.done;
  }

  get failed(): boolean {
    return this.reader.failed;
  }

  /** Returns what it has not taken, and adds to `calls`. */
  push(text: string, calls: ToolCallDelta[]): string {
    const taken = this.reader.push(text);
    this.raw += text.slice(0, taken);
    const { name } = this.reader;
    if (name !== null) {
      const more = this.reader.takeArguments();
      // A call that has no arguments yet may still turn out to be an answer in JSON.
      if (!this.begun && (more !== '' || this.done)) {
        calls.push(this.writer.begin(name));
        this.begun = true;
      }
      if (this.begun) calls.push(...this.writer.more(more));
    }
    return text.slice(taken);
  }

  /** What is text after all: everything, behind what opened it, when no part has been given out as a call. */
  rest(opening: string): string {
    return this.begun ? '' : opening + this.raw;
  }
}
