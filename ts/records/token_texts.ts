// The text that each of a row of tokens adds.

const INCOMPLETE = '\ufffd';
/** A character has at most four bytes, so no more tokens than that share one. */
const LONGEST = 4;

/**
 * By token; their concatenation is the text of all. A token's own text may need those before it (spaces at the beginning of a
 * word) and may be part of a character: the last token of a character has it, those before it have "".
 */
export function tokenTexts(ids: readonly number[], decode: (tokens: readonly number[]) => string): string[] {
  const texts: string[] = [];
  // Everything before `shown` is in `texts`; decoding goes on from `context`, a little before it.
  let context = 0;
  let shown = 0;
  for (let end = 1; end <= ids.length; end++) {
    // Tokenizers take no empty lists.
    const before = shown > context ? decode(ids.slice(context, shown)) : '';
    const now = decode(ids.slice(context, end));
    const waits = now.endsWith(INCOMPLETE) && end < ids.length && end - shown < LONGEST;
    if (waits || now.length <= before.length) {
      texts.push('');
      if (!waits && end - shown >= LONGEST) [context, shown] = [shown, end];
      continue;
    }
    texts.push(now.slice(before.length));
    [context, shown] = [shown, end];
  }
  return texts;
}
