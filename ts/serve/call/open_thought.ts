// Prompts that end within a thought: templates open one where the model is to go on thinking after a call.
import type { Tokenizer } from '../../data/tokenizer';
import type { CallReading } from '../tools/families';

/** The tag and its label are no more tokens. */
const MOST_TOKENS = 32;

export function endsInThought(
  tokenizer: Pick<Tokenizer, 'decode'>,
  promptIds: ArrayLike<number>,
  { thoughts }: Pick<CallReading, 'thoughts'>,
): boolean {
  if (thoughts === undefined) return false;
  const from = Math.max(0, promptIds.length - MOST_TOKENS);
  const last = Array.from({ length: promptIds.length - from }, (_, i) => promptIds[from + i] as number);
  return tokenizer.decode(last, { skipSpecialTokens: false }).endsWith(thoughts.open + thoughts.label);
}

/** The prompt of a response that is held to a form: a thought that is open has no place in it. */
export function withoutOpenThought(
  tokenizer: Pick<Tokenizer, 'decode' | 'encode'>,
  promptIds: ArrayLike<number>,
  reading: Pick<CallReading, 'thoughts'> | null,
): ArrayLike<number> {
  const { thoughts } = reading ?? {};
  if (thoughts === undefined || !endsInThought(tokenizer, promptIds, { thoughts })) return promptIds;
  return Int32Array.from([...Array.from(promptIds), ...tokenizer.encode(thoughts.close)]);
}
