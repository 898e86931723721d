// The body of one call inside a response: its deltas as they come, or its text when it is no call.
import { CallReader } from './call_reader';
import type { CallWriter } from './call_writer';
import type { CallBody } from './tagged_calls';
import type { ToolCallDelta } from './tool_parser';

export class BodyParser implements CallBody {
  private readonly reader: CallReader;
  private raw = '';
  private begun = false;

  /** `bare`, `ends`: as in CallReader. */
  constructor(
    private readonly writer: CallWriter,
    bare = true,
    ends?: string,
  ) {
    this.reader = new CallReader(bare, ends);
  }

  get done(): boolean {
    return this.reader.done;
  }

  get failed(): boolean {
    return this.reader.failed;
  }

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

  rest(opening: string): string {
    return this.begun ? '' : opening + this.raw;
  }
}
