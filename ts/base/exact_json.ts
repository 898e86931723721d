// JSON whose integers stay exact: what doubles cannot hold becomes a bigint, and is written with all its digits again.

/** Marks the digits of an integer among strings; data has no reason to begin a text with it. */
const MARK = '\0';
const MARKED = /^\0-?\d+$/;
/** A text, or an integer of so many digits as Python reads at once and is worth it. */
const TEXT_OR_INTEGER = /"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\d.eE+-])-?\d{16,4300}(?![\d.eE])/g;

/** @throws SyntaxError when it is not JSON */
export function parseExactJson(text: string): unknown {
  const rounded: unknown = JSON.parse(text);
  // Beyond this line every text is known to end, so that the search is linear.
  if (!/\d{16}/.test(text)) return rounded;
  const marked = text.replace(TEXT_OR_INTEGER, (token) =>
    token.startsWith('"') || Number.isSafeInteger(Number(token)) ? token : `"\\u0000${token}"`,
  );
  if (marked === text) return rounded;
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === 'string' && MARKED.test(value) ? BigInt(value.slice(1)) : value,
  );
}

export const exactJson = (value: unknown): string =>
  JSON.stringify(value, (_, item: unknown) => (typeof item === 'bigint' ? `${MARK}${item}` : item)).replace(
    /"\\u0000(-?\d+)"/g,
    '$1',
  );
