// What Python's str and re mean where JavaScript's strings differ: rules that were written for Python depend on it.

/** Python's white space (str.isspace, \s): unlike JavaScript's, with U+001C to U+001F and U+0085, without U+FEFF. */
export const WHITE_SPACE =
  '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';

/** Python's \w. */
export const WORD = '\\p{L}\\p{N}_';

const SPACE = new RegExp(`[${WHITE_SPACE}]`);
const SPACES = new RegExp(`[${WHITE_SPACE}]+`);

/** Digits that are not decimal, such as superscripts and circled numbers: str.isdigit counts them, \d does not. */
const OTHER_DIGITS =
  '\\xb2\\xb3\\xb9\\u1369-\\u1371\\u19da\\u2070\\u2074-\\u2079\\u2080-\\u2089\\u2460-\\u2468\\u2474-\\u247c\\u2488-\\u2490' +
  '\\u24ea\\u24f5-\\u24fd\\u24ff\\u2776-\\u277e\\u2780-\\u2788\\u278a-\\u2792\\u{10a40}-\\u{10a43}\\u{10e60}-\\u{10e68}' +
  '\\u{11052}-\\u{1105a}\\u{1f100}-\\u{1f10a}';
const ALL_DIGITS = new RegExp(`^[\\p{Nd}${OTHER_DIGITS}]+$`, 'u');

/** The last `count` Unicode code points of a text: text[-count:] in Python. */
export function lastCodePoints(text: string, count: number): string {
  return [...text.slice(-2 * count)].slice(-count).join('');
}

/** The first code point of a text; '' of an empty one. */
export function firstCodePoint(text: string): string {
  const code = text.codePointAt(0);
  return code === undefined ? '' : String.fromCodePoint(code);
}

/** str.strip() */
export function strip(text: string): string {
  let [start, end] = [0, text.length];
  while (start < end && SPACE.test(text[start] as string)) start++;
  while (end > start && SPACE.test(text[end - 1] as string)) end--;
  return text.slice(start, end);
}

/** str.split() */
export const splitWhiteSpace = (text: string): string[] => text.split(SPACES).filter((word) => word !== '');

/** str.isdigit() */
export const isDigits = (text: string): boolean => ALL_DIGITS.test(text);

/** str.replace(from, to): `to` is taken literally. */
export const replaceText = (text: string, from: string, to: string): string => text.split(from).join(to);
