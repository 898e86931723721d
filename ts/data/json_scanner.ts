/** Where the rows of a JSON file are, in bytes. */
export interface JsonIndex {
  starts: number[];
  ends: number[];
  /** Line of each row, from 1; null for an array. */
  lines: number[] | null;
}

const NEWLINE = 0x0a;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const CLOSE_ARRAY = 0x5d;
const OPEN = new Set([0x5b, 0x7b]);
const CLOSE = new Set([0x5d, 0x7d]);
const isSpace = (byte: number): boolean => byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);

/** Finds the rows of JSON lines, or of an array, in bytes that come in pieces, without parsing them. */
export class JsonScanner {
  private readonly index: JsonIndex = { starts: [], ends: [], lines: [] };
  private offset = 0;
  private line = 1;
  /** Start of the row that the scan is in; -1 between rows. */
  private start = -1;
  /** End of what is not white space of that row. */
  private last = 0;
  private depth = 0;
  private quoted = false;
  private escaped = false;
  /** What is wrong with the array; null so far nothing. */
  private problem: string | null = null;
  private mode: 'unknown' | 'lines' | 'array' | 'closed' = 'unknown';

  constructor(private readonly mayBeArray: boolean) {}

  push(bytes: Uint8Array): void {
    let i = 0;
    if (this.mode === 'unknown') i = this.begin(bytes);
    if (this.mode === 'lines') this.pushLines(bytes, i);
    else if (this.mode !== 'unknown') this.pushArray(bytes, i);
    this.offset += bytes.length;
  }

  /** `line`: where the scan has ended, which is at the problem when there is one. */
  end(): { index: JsonIndex; problem: string | null; line: number } {
    const { index, line } = this;
    if (this.mode === 'array' && this.problem === null)
      return { index, problem: `the array ends within row ${index.starts.length}`, line };
    if (this.start >= 0) this.finish(this.last);
    return { index, problem: this.problem, line };
  }

  /** Index of the first byte of the rows: past white space, a byte-order mark, and the bracket of an array. */
  private begin(bytes: Uint8Array): number {
    let i = this.offset === 0 && bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? 3 : 0;
    if (!this.mayBeArray) {
      this.mode = 'lines';
      return i;
    }
    const first = i;
    while (i < bytes.length && isSpace(bytes[i] as number)) i++;
    if (i === bytes.length) return i;
    const array = bytes[i] === 0x5b;
    if (array) this.line += bytes.subarray(first, i).filter((byte) => byte === NEWLINE).length;
    this.mode = array ? 'array' : 'lines';
    if (array) this.index.lines = null;
    return array ? i + 1 : first;
  }

  private pushLines(bytes: Uint8Array, from: number): void {
    let i = from;
    while (i < bytes.length) {
      let newline = bytes.indexOf(NEWLINE, i);
      const complete = newline >= 0;
      if (!complete) newline = bytes.length;
      let [start, end] = [i, newline];
      while (end > start && isSpace(bytes[end - 1] as number)) end--;
      if (this.start < 0) {
        while (start < end && isSpace(bytes[start] as number)) start++;
        if (start < end) this.start = this.offset + start;
      }
      if (start < end) this.last = this.offset + end;
      if (complete) {
        if (this.start >= 0) this.finish(this.last);
        this.line++;
      }
      i = newline + 1;
    }
  }

  private pushArray(bytes: Uint8Array, from: number): void {
    for (let i = from; i < bytes.length && this.problem === null; i++) {
      const byte = bytes[i] as number;
      if (byte === NEWLINE) this.line++;
      if (this.quoted) {
        if (this.escaped) this.escaped = false;
        else if (byte === BACKSLASH) this.escaped = true;
        else if (byte === QUOTE) this.quoted = false;
        continue;
      }
      if (isSpace(byte)) continue;
      const at = this.offset + i;
      if (this.mode === 'closed') this.problem = `something follows the array, at byte ${at}`;
      else if (this.depth === 0 && (byte === COMMA || CLOSE.has(byte))) this.endOfRow(byte, at);
      else this.withinRow(byte, at);
    }
  }

  /** At a comma or a closing bracket outside of all others. */
  private endOfRow(byte: number, at: number): void {
    const rows = this.index.starts.length;
    if (byte !== COMMA && byte !== CLOSE_ARRAY)
      this.problem = `a bracket closes that was not open, at byte ${at}`;
    else if (this.start >= 0) this.finish(at);
    else if (byte === COMMA || rows > 0) this.problem = `row ${rows} is missing, at byte ${at}`;
    if (byte === CLOSE_ARRAY) this.mode = 'closed';
  }

  private withinRow(byte: number, at: number): void {
    if (this.start < 0) this.start = at;
    if (byte === QUOTE) this.quoted = true;
    else if (OPEN.has(byte)) this.depth++;
    else if (CLOSE.has(byte)) this.depth--;
  }

  private finish(end: number): void {
    this.index.starts.push(this.start);
    this.index.ends.push(end);
    this.index.lines?.push(this.line);
    this.start = -1;
  }
}
