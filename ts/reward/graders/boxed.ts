/**
 * `text` from `start` to the brace that closes the first one opened there; null when none does. Escaped braces count
 * as braces. One pass.
 */
export function balanced(text: string, start: number): string | null {
  let open = 0;
  for (let i = start; i < text.length; i++) {
    if (text[i] === '{') open++;
    else if (text[i] === '}' && --open === 0) return text.slice(start, i + 1);
  }
  return null;
}

const BOXED = '\\boxed{';

/** What the last `\boxed{...}` holds; null when there is none or its braces do not close. */
export function lastBoxed(text: string): string | null {
  const start = text.lastIndexOf(BOXED);
  const found = start < 0 ? null : balanced(text, start);
  return found === null ? null : found.slice(BOXED.length, -1);
}
