// Token ids of prompts and responses, each an array, end to end.
import { tokenCount } from './arguments';
import { toInt32 } from './columns';
import { fail } from './fail';
import { type Layout, makeLayout } from './layout';

export type Seqs = ArrayLike<ArrayLike<number>>;

/** @throws TroupeError INVALID_ARGUMENT naming the prompt or response that is no array of ids */
export function joinSequences(prompts: Seqs, responses: Seqs): { layout: Layout; tokens: Int32Array } {
  if (prompts.length !== responses.length)
    fail(`fromSequences: got ${prompts.length} prompts but ${responses.length} responses`);
  const size = prompts.length;
  const promptLens = new Int32Array(size);
  const responseLens = new Int32Array(size);
  for (let i = 0; i < size; i++) {
    promptLens[i] = tokenCount(`prompt ${i}`, prompts[i]);
    responseLens[i] = tokenCount(`response ${i}`, responses[i]);
  }
  const layout = makeLayout(promptLens, responseLens);
  const tokens = new Int32Array(layout.numTokens);
  for (let i = 0; i < size; i++) {
    const start = layout.seqOffsets[i] as number;
    tokens.set(toInt32(`prompt ${i}`, prompts[i] as ArrayLike<number>), start);
    tokens.set(
      toInt32(`response ${i}`, responses[i] as ArrayLike<number>),
      start + (promptLens[i] as number),
    );
  }
  return { layout, tokens };
}
