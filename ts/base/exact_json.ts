// JSON whose integers stay exact: what doubles cannot hold becomes a bigint, and is written with all its digits again.
import { randomUUID } from 'node:crypto';

/** An integer of so many digits as Python reads at once and is worth it. */
const INTEGER = /(?<![\d.eE+-])-?\d{16,4300}(?![\d.eE])/;

/**
 * JSON in which every match of `pattern` outside of its texts is what `replace` makes of it. Linear in time and of no depth, also of what
 * is no JSON.
 */
export function replaceOutsideTexts(
  json: string,
  pattern: RegExp,
  replace: (match: string) => string,
): string {
  let inText = false;
  return json.replace(new RegExp(`\\\\[^]|"|${pattern.source}`, 'g'), (match) => {
    if (match === '"') inText = !inText;
    return inText || match === '"' || match.startsWith('\\') ? match : replace(match);
  });
}

/** @throws SyntaxError when it is not JSON */
export function parseExactJson(text: string): unknown {
  const rounded: unknown = JSON.parse(text);
  if (!/\d{16}/.test(text)) return rounded;
  // Digits among texts; no text of the data begins so.
  const mark = randomUUID();
  const marked = replaceOutsideTexts(text, INTEGER, (digits) =>
    Number.isSafeInteger(Number(digits)) ? digits : `"${mark}${digits}"`,
  );
  if (marked === text) return rounded;
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === 'string' && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value,
  );
}

export function exactJson(value: unknown): string {
  const mark = randomUUID();
  const integers: bigint[] = [];
  const text = JSON.stringify(value, (_, item: unknown) =>
    typeof item === 'bigint' ? `${mark}${integers.push(item) - 1}` : item,
  );
  if (integers.length === 0) return text;
  return text.replace(new RegExp(`"${mark}(\\d+)"`, 'g'), (_, i: string) => String(integers[Number(i)]));
}
