import type { Grammar } from '../../../ts/rollout/request';
import type { GrammarThreads } from '../../../ts/serve/grammar/grammar_threads';

/** Whether a response that is held to the grammar may be these tokens. */
export async function takesTokens(
  grammars: GrammarThreads,
  grammar: Grammar,
  tokens: Iterable<number>,
): Promise<boolean> {
  const constraint = await grammars.open(grammar);
  let last = new Int32Array(0);
  try {
    for (const token of tokens) {
      const mask = (await constraint.next(last)) as Uint32Array;
      if (!(((mask[token >> 5] as number) >>> (token & 31)) & 1)) return false;
      last = Int32Array.of(token);
    }
    return true;
  } finally {
    constraint.close();
  }
}
