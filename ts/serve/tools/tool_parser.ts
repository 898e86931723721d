// What a model writes, as text and calls of tools.

/** A piece of a call: the first one of an index has id and name, later ones more of the arguments' JSON. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  name?: string;
  arguments: string;
}

export interface ParsedText {
  /** For the reader. */
  text: string;
  calls: ToolCallDelta[];
  /** What the model thinks, of families that say so. */
  reasoning?: string;
}

/** Reads one response. What turns out to be no call is given back as text, so that nothing is lost. */
export interface ToolParser {
  push(text: string): ParsedText;
  /** `cut`: the model would have gone on. */
  end(cut?: boolean): ParsedText;
  /** Whatever comes next belongs to what is being read; left out: never. */
  readonly inside?: boolean;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
}

/** Deltas joined to calls, in order. */
export class CallCollector {
  readonly calls: ToolCall[] = [];

  add(deltas: readonly ToolCallDelta[]): void {
    for (const { index, id, name, arguments: more } of deltas) {
      let call = this.calls[index];
      if (call === undefined) {
        call = { id: id as string, name: name as string, arguments: '' };
        this.calls[index] = call;
      }
      call.arguments += more;
    }
  }
}
