// Text from outside (data, models, user code, file names) in messages that reach a terminal or a log: no control characters, no
// text without end.

/** Characters of a piece of foreign text that a message shows, unless it says otherwise. */
const SHOWN_CHARACTERS = 300;

export interface PrintableOptions {
  /** Characters of the text that are kept; what is longer is cut, and its length told. 300 */
  max?: number;
  /** Keep line breaks and tabs. false: they are escaped like other control characters. false */
  lines?: boolean;
}

const SHORT: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };
/** Control characters (C0, DEL, C1), half characters, line separators, and marks that change the direction of what follows. */
const HIDDEN = /[\p{Cc}\p{Cs}\u2028\u2029\u061C\u200E\u200F\u202A-\u202E\u2066-\u2069\uFEFF]/gu;

function escaped(char: string): string {
  const code = char.codePointAt(0) as number;
  return SHORT[char] ?? (code < 0x100 ? `\\x${hex(code, 2)}` : `\\u${hex(code, 4)}`);
}

const hex = (code: number, digits: number): string => code.toString(16).padStart(digits, '0');

/**
 * Text as a message may show it: at most `max` characters (UTF-16) of it, then "… (N characters)"; control characters, which
 * could move a terminal's cursor or hide what follows, as \n, \x1b or \u202e. Takes the time of what it keeps.
 */
export function printable(
  text: string,
  { max = SHOWN_CHARACTERS, lines = false }: PrintableOptions = {},
): string {
  const cut = text.length > max;
  let kept = cut ? text.slice(0, max) : text;
  // Not half of a character that takes two.
  if (cut && /[\uD800-\uDBFF]$/.test(kept)) kept = kept.slice(0, -1);
  const shown = kept.replace(HIDDEN, (char) =>
    lines && (char === '\n' || char === '\t') ? char : escaped(char),
  );
  return cut ? `${shown}… (${text.length} characters)` : shown;
}
