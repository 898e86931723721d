// What ends a response.
import type { Tokenizer } from './tokenizer';

/** What to say of a model without any; null: there are some. `directory`: of the model. */
export function endlessNote(ids: readonly number[], directory: string): string | null {
  if (ids.length > 0) return null;
  return (
    `note: nothing names a token that ends a response, so that every one goes on to its full length: expected eos_token_id in generation_config.json or config.json of ${directory}, ` +
    `or eos_token in tokenizer_config.json beside the tokenizer, as one of its vocabulary`
  );
}

/**
 * The ids that end a response: the model's `own` (`eos_token_id` of generation_config.json, else of config.json) and the tokenizer's `eos_token`, as in vLLM
 * and SGLang. Fine-tuning ends responses with the tokenizer's, which need not be one of the base model's.
 * Calls of tools end a response of gpt-oss, too, and what tools tell begins behind one of Gemma 4, whatever of this a fine-tune has kept in its files.
 */
export function endTokenIds(
  own: readonly number[],
  tokenizer: Pick<Tokenizer, 'eosId' | 'addedTokens'>,
): number[] {
  const { eosId } = tokenizer;
  const added = [...tokenizer.addedTokens()];
  const idOf = (content: string): number[] =>
    added.flatMap(([id, token]) => (token.special && token.content === content ? [id] : []));
  const calls = [
    ...(idOf('<|channel|>').length > 0 ? idOf('<|call|>') : []),
    ...(idOf('<|tool_call>').length > 0 ? idOf('<|tool_response>') : []),
  ];
  return [...new Set([...own, ...(eosId === null ? [] : [eosId]), ...calls])];
}
