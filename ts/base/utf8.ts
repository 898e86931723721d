// Text files are UTF-8: other bytes would become question marks in silence.
import { isUtf8 } from 'node:buffer';

const NEWLINE = 0x0a;

/** Without a byte-order mark. @param fail is told the line (from 1) of the first bytes that are no UTF-8 */
export function decodeUtf8(bytes: Buffer, fail: (line: number) => never): string {
  if (!isUtf8(bytes)) fail(badLine(bytes));
  const text = bytes.toString('utf8');
  return text.charCodeAt(0) === 0xfeff ? text.slice(1) : text;
}

function badLine(bytes: Buffer): number {
  let line = 1;
  for (let from = 0; from < bytes.length; line++) {
    const newline = bytes.indexOf(NEWLINE, from);
    const end = newline < 0 ? bytes.length : newline;
    if (!isUtf8(bytes.subarray(from, end))) return line;
    from = end + 1;
  }
  return line;
}
