// The greatest id of a column of tokens, which every verb of a step asks for: hundreds of millions of them are looked through once.

const known = new WeakMap<Int32Array, number>();

/** As unsigned numbers, so that a negative one is greater than any vocabulary; 0 of none. `tokens`: of a batch, which never changes. */
export function greatestId(tokens: Int32Array): number {
  const found = known.get(tokens);
  if (found !== undefined) return found;
  let greatest = 0;
  for (let t = 0; t < tokens.length; t++) {
    const id = (tokens[t] as number) >>> 0;
    if (id > greatest) greatest = id;
  }
  known.set(tokens, greatest);
  return greatest;
}
