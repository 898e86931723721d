// JSON whose integers stay exact: what doubles cannot hold becomes a bigint, and is written with all its digits again.
import { randomUUID } from 'node:crypto';

/** A text, or an integer of so many digits as Python reads at once and is worth it. */
const TEXT_OR_INTEGER = /"[^"\\]*(?:\\.[^"\\]*)*"|(?<![\d.eE+-])-?\d{16,4300}(?![\d.eE])/g;

/** @throws SyntaxError when it is not JSON */
export function parseExactJson(text: string): unknown {
  const rounded: unknown = JSON.parse(text);
  // Beyond this line every text is known to end, so that the search is linear.
  if (!/\d{16}/.test(text)) return rounded;
  // Digits among texts; no text of the data begins so.
  const mark = randomUUID();
  const marked = text.replace(TEXT_OR_INTEGER, (token) =>
    token.startsWith('"') || Number.isSafeInteger(Number(token)) ? token : `"${mark}${token}"`,
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
