// A prompt as the model got it, taken apart into turns where its template is one of the usual two.

export interface ChatTurn {
  role: string;
  content: string;
}

const CHATML = /<\|im_start\|>([a-z_]+)\n([\s\S]*?)(?:<\|im_end\|>\n?|$)/g;
const LLAMA3 = /<\|start_header_id\|>([a-z_]+)<\|end_header_id\|>\n\n([\s\S]*?)(?:<\|eot_id\|>|$)/g;

/** One turn of the user where the text has no template that is known. */
export function chatTurns(text: string): ChatTurn[] {
  for (const pattern of [CHATML, LLAMA3]) {
    const turns = [...text.matchAll(pattern)].map(([, role, content]) => ({
      role: role as string,
      content: content as string,
    }));
    // The last one is where the model was to go on.
    if (turns.length > 0) return turns.filter(({ content }, i) => content !== '' || i < turns.length - 1);
  }
  return [{ role: 'prompt', content: text }];
}
