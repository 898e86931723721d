// What ends a response.

/**
 * The ids that end a response: the model's `own` (`eos_token_id` of generation_config.json, else of config.json) and the tokenizer's `eos_token`, as in vLLM
 * and SGLang. Fine-tuning ends responses with the tokenizer's, which need not be one of the base model's.
 */
export function endTokenIds(own: readonly number[], { eosId }: { readonly eosId: number | null }): number[] {
  return eosId === null || own.includes(eosId) ? [...own] : [...own, eosId];
}
