// How long a response may be.
/** Tokens that a response to a prompt of `length` tokens may have, of which `maxTokens` are the most together. Below 1: none. */
export const roomFor = (length: number, most: { maxNewTokens: number; maxTokens: number }): number =>
  Math.min(most.maxNewTokens, most.maxTokens - length);
