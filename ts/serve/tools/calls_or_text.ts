// A response that is either calls of tools or an answer: its beginning says which.
import { type CallReading, type FunctionTool, reading, type ToolFamily } from './families';
import type { ParsedText, ToolParser } from './tool_parser';

/** As the family reads calls, where a response that does not begin as a call of one of these tools has none: what looks like one is part of the answer. */
export function callsOrText(family: ToolFamily, tools: readonly FunctionTool[]): CallReading {
  const begins = tools.map(({ function: { name } }) => family.frame(name).begin);
  return reading(family, family.tags, () => new CallsOrText(family.parser(tools), begins));
}

class CallsOrText implements ToolParser {
  private buffer = '';
  private state: 'begin' | 'calls' | 'text' = 'begin';

  constructor(
    private readonly calls: ToolParser,
    private readonly begins: readonly string[],
  ) {}

  get inside(): boolean {
    return this.state === 'text' || (this.state === 'calls' && this.calls.inside === true);
  }

  push(text: string): ParsedText {
    if (this.state === 'calls') return this.calls.push(text);
    if (this.state === 'text') return { text, calls: [] };
    this.buffer += text;
    if (this.begins.some((begin) => this.buffer.startsWith(begin))) {
      this.state = 'calls';
      return this.calls.push(this.buffer);
    }
    if (this.begins.some((begin) => begin.startsWith(this.buffer))) return { text: '', calls: [] };
    this.state = 'text';
    return { text: this.buffer, calls: [] };
  }

  end(cut = false): ParsedText {
    if (this.state === 'calls') return this.calls.end(cut);
    return { text: this.state === 'begin' ? this.buffer : '', calls: [] };
  }
}
