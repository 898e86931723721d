// What ends a response.
import type { Tokenizer } from './tokenizer';

/**
 * The ids that end a response: the model's `own` (`eos_token_id` of generation_config.json, else of config.json) and the tokenizer's `eos_token`, as in vLLM
 * and SGLang. Fine-tuning ends responses with the tokenizer's, which need not be one of the base model's.
 * A call of a tool ends a response of gpt-oss, too, whatever of this a fine-tune has kept in its files.
 */
export function endTokenIds(
  own: readonly number[],
  tokenizer: Pick<Tokenizer, 'eosId' | 'addedTokens'>,
): number[] {
  const { eosId } = tokenizer;
  const added = [...tokenizer.addedTokens()];
  const idOf = (content: string): number[] =>
    added.flatMap(([id, token]) => (token.special && token.content === content ? [id] : []));
  const calls = idOf('<|channel|>').length > 0 ? idOf('<|call|>') : [];
  return [...new Set([...own, ...(eosId === null ? [] : [eosId]), ...calls])];
}
