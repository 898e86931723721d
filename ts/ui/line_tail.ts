// New lines of a file that another process writes: read once each, from where the last look ended.
import { type Inside, readAt } from './inside';

/** Read at a time. */
const PIECE = 4 << 20;
/** A line that is longer is left out. */
const LONGEST = 64 << 20;
/** Bytes before the position that must still be there. */
const MARK = 64;

const NEWLINE = 10;

export interface LineReader {
  /** The file is another one, or shorter than it was, or gone: what was read of it does not hold any more. */
  reset(): void;
  /** A complete line without its end, and where it begins. */
  line(text: string, offset: number): void;
}

export class LineTail {
  private offset = 0;
  private identity = '';
  private mark: Buffer = Buffer.alloc(0);
  private tooLong = false;

  constructor(
    private readonly inside: Inside,
    private readonly path: string,
    private readonly reader: LineReader,
  ) {}

  /** Reads what is new; a last line without an end waits for it. Returns whether there was anything. */
  poll(): boolean {
    const found = this.inside.with(this.path, ({ fd, size, identity }) => {
      let changed = false;
      // A file that is shorter than it was lacks the mark, or part of it.
      if (identity !== this.identity || !this.marked(fd)) changed = this.forget(identity);
      return this.read(fd, size) || changed;
    });
    return found ?? this.forget('');
  }

  /** Everything is read again, and nobody is told that it does not hold. */
  rewind(): void {
    this.offset = 0;
    this.mark = Buffer.alloc(0);
    this.tooLong = false;
  }

  private marked(fd: number): boolean {
    return readAt(fd, this.offset - this.mark.length, this.mark.length).equals(this.mark);
  }

  private forget(identity: string): boolean {
    const had = this.offset > 0;
    this.identity = identity;
    this.offset = 0;
    this.mark = Buffer.alloc(0);
    this.tooLong = false;
    if (had) this.reader.reset();
    return had;
  }

  private read(fd: number, size: number): boolean {
    let any = false;
    let length = PIECE;
    while (this.offset < size) {
      const piece = readAt(fd, this.offset, Math.min(length, size - this.offset));
      const end = piece.lastIndexOf(NEWLINE) + 1;
      if (end === 0) {
        if (this.offset + piece.length >= size && piece.length < LONGEST) break;
        // One line larger than the piece.
        if (length < LONGEST) {
          length *= 4;
          continue;
        }
        this.tooLong = true;
        this.advance(piece);
        continue;
      }
      any = true;
      this.lines(piece.subarray(0, end));
      this.advance(piece.subarray(0, end));
    }
    return any;
  }

  private advance(read: Buffer): void {
    this.offset += read.length;
    this.mark = Buffer.from(read.subarray(Math.max(0, read.length - MARK)));
  }

  private lines(piece: Buffer): void {
    let from = 0;
    for (let end = piece.indexOf(NEWLINE); end >= 0; end = piece.indexOf(NEWLINE, from)) {
      // The rest of a line that was too long.
      if (this.tooLong) this.tooLong = false;
      else if (end > from) this.reader.line(piece.toString('utf8', from, end), this.offset + from);
      from = end + 1;
    }
  }
}

/** An object of a line of JSON; null for anything else, such as what a crash has cut. */
export function jsonObject(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    return null;
  }
}
