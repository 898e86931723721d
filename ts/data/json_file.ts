import { constants } from 'node:buffer';
import { closeSync, fstatSync, openSync, readFileSync, readSync } from 'node:fs';
import { parseExactJson } from '../base/exact_json';
import { describeShape, shapeProblem } from '../base/json_shape';
import { pointerHint } from '../base/lfs_pointer';
import { printable } from '../base/printable';
import { isRegularFile } from '../base/regular_file';
import { relativeTo } from '../base/relative_to';
import { reasonOf, show } from '../base/text';
import { decodeUtf8 } from '../base/utf8';
import { TroupeError } from '../errors';
import { type JsonIndex, JsonScanner } from './json_scanner';
import type { Row, RowFile } from './row';

/** Files up to this size are parsed whole when they are opened, so that a bad row shows before any work starts. */
const PARSED_AT_ONCE = 32 * 2 ** 20;
const CHUNK = 4 * 2 ** 20;

export interface JsonOptions {
  /** Bytes. */
  parsedAtOnce?: number;
  /** Messages have it, and numbers of rows, in place of the file and its lines. */
  name?: string;
}

/**
 * A file of one JSON object per line, or of one array of objects: what it begins with decides. A large file is scanned once
 * for where its rows begin and end; its rows are parsed when they are read.
 * @throws TroupeError IO, or INVALID_DATA naming file and line
 */
export function openJsonFile(
  path: string,
  { parsedAtOnce = PARSED_AT_ONCE, name }: JsonOptions = {},
): RowFile {
  let fd: number;
  try {
    isRegularFile(path);
    fd = openSync(path, 'r');
  } catch (cause) {
    throw new TroupeError('IO', `[data] cannot read ${path}${relativeTo(path)}: ${reasonOf(cause)}`, {
      cause,
    });
  }
  let kept = false;
  try {
    const { size } = fstatSync(fd);
    const pointer = pointerHint(path);
    if (pointer !== '')
      throw new TroupeError('INVALID_DATA', `[data] ${path}: expected JSON objects${pointer}`);
    if (size <= parsedAtOnce) {
      const text = decodeUtf8(readFileSync(fd), (line) => notText(`${path}:${line}`));
      const isArray = /^\s*\[/.test(text) && path.endsWith('.json');
      const { rows, lines } = isArray ? parseArray(path, text) : parseLines(path, text);
      return new MemoryFile(name ?? path, rows, name === undefined ? lines : null, size);
    }
    const index = scan(path, fd);
    const file = new IndexedFile(
      name ?? path,
      fd,
      name === undefined ? index : { ...index, lines: null },
      size,
    );
    kept = true;
    return file;
  } catch (cause) {
    if (cause instanceof TroupeError) throw cause;
    throw new TroupeError('IO', `[data] cannot read ${path}${relativeTo(path)}: ${reasonOf(cause)}`, {
      cause,
    });
  } finally {
    if (!kept) closeSync(fd);
  }
}

function notText(where: string): never {
  throw new TroupeError('INVALID_DATA', `[data] ${where}: not valid UTF-8: write the file again as UTF-8`);
}

/** What JSON.parse says quotes the text. */
const jsonReason = (cause: unknown): string => explained(printable(reasonOf(cause)));

/** Python's json writes numbers that are none, and reads them again. */
const explained = (reason: string): string =>
  /^Unexpected token '[NI]'|^No number after minus sign/.test(reason)
    ? `${reason} (Python's NaN, Infinity and None are no JSON: write null, or leave them out)`
    : reason;

const rowOf = (path: string, index: number): string => `${path}, row ${index}`;

/** @throws TroupeError INVALID_DATA */
function parseRow(text: string, where: string): Row {
  let row: unknown;
  try {
    row = parseExactJson(text);
  } catch (cause) {
    // Node 22 and newer also tell the line within the row, which contradicts that of the file.
    const reason = jsonReason(cause).replace(/ \(line \d+ column \d+\)/, '');
    throw new TroupeError('INVALID_DATA', `[data] ${where}: not valid JSON: ${reason}`, { cause });
  }
  const problem = shapeProblem(text);
  if (problem !== null)
    throw new TroupeError('INVALID_DATA', `[data] ${where}: ${describeShape(text, problem).what}`);
  return checkedRow(row, where);
}

function checkedRow(value: unknown, where: string): Row {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Row;
  throw new TroupeError('INVALID_DATA', `[data] ${where}: expected a JSON object, got ${show(value)}`);
}

/** Rows, and the line of each; null for files without lines. */
interface Parsed {
  rows: readonly Row[];
  lines: readonly number[] | null;
}

function parseLines(path: string, text: string): Parsed {
  const rows: Row[] = [];
  const lines: number[] = [];
  text.split('\n').forEach((line, i) => {
    if (line.trim() === '') return;
    rows.push(parseRow(line, `${path}:${i + 1}`));
    lines.push(i + 1);
  });
  return { rows, lines };
}

function parseArray(path: string, text: string): Parsed {
  let value: unknown;
  try {
    value = parseExactJson(text);
  } catch (cause) {
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${arrayProblem(path, text) ?? `${path}: not valid JSON: ${jsonReason(cause)}`}`,
      { cause },
    );
  }
  const problem = shapeProblem(text);
  if (problem !== null) {
    const { line, what } = describeShape(text, problem);
    throw new TroupeError('INVALID_DATA', `[data] ${path}:${line}: ${what}`);
  }
  if (!Array.isArray(value)) {
    throw new TroupeError('INVALID_DATA', `[data] ${path}: expected an array of objects, got ${show(value)}`);
  }
  value.forEach((row, i) => {
    checkedRow(row, rowOf(path, i));
  });
  return { rows: value as Row[], lines: null };
}

/** Which row of an array is no JSON, and on which line; null when it is not one of the rows. */
function arrayProblem(path: string, text: string): string | null {
  const bytes = Buffer.from(text);
  const scanner = new JsonScanner(true);
  scanner.push(bytes);
  const { index, problem, line } = scanner.end();
  for (const [i, start] of index.starts.entries()) {
    const row = bytes.toString('utf8', start, index.ends[i]);
    try {
      JSON.parse(row);
    } catch (cause) {
      const reason = reasonOf(cause);
      // V8 names the place in some messages only, and quotes the row in others; without it: the line where the row begins.
      const within = /at position (\d+)/.exec(reason);
      const before = bytes.toString('utf8', 0, start) + row.slice(0, within === null ? 0 : Number(within[1]));
      const why = reason.replace(/ at position .*|, "[\s\S]*" is not valid JSON$/, '');
      return `${path}:${before.split('\n').length}, row ${i}: not valid JSON: ${explained(printable(why))}`;
    }
  }
  return problem === null ? null : `${path}:${line}: not valid JSON: ${problem}`;
}

function scan(path: string, fd: number): JsonIndex {
  const scanner = new JsonScanner(path.endsWith('.json'));
  const chunk = Buffer.allocUnsafe(CHUNK);
  for (;;) {
    const length = readSync(fd, chunk, 0, CHUNK, null);
    if (length === 0) break;
    scanner.push(chunk.subarray(0, length));
  }
  const { index, problem, line } = scanner.end();
  if (problem !== null)
    throw new TroupeError('INVALID_DATA', `[data] ${path}:${line}: not valid JSON: ${problem}`);
  return index;
}

class MemoryFile implements RowFile {
  readonly inMemory = true;
  readonly columns = null;

  constructor(
    readonly path: string,
    private readonly rows: readonly Row[],
    private readonly lines: readonly number[] | null,
    readonly bytes: number,
  ) {}

  get starts(): readonly number[] {
    return [0, this.length];
  }
  forget(): void {
    // It is all there is of the rows.
  }

  get length(): number {
    return this.rows.length;
  }
  async row(index: number): Promise<Row> {
    return this.rows[index] as Row;
  }
  where(index: number): string {
    return this.lines === null ? rowOf(this.path, index) : `${this.path}:${this.lines[index]}`;
  }
}

/** The descriptor stays open as long as the process: rows are read to the end of the run. */
class IndexedFile implements RowFile {
  readonly inMemory = false;
  readonly columns = null;

  constructor(
    readonly path: string,
    private readonly fd: number,
    private readonly index: JsonIndex,
    readonly bytes: number,
  ) {}

  get starts(): readonly number[] {
    return [0, this.length];
  }
  forget(): void {
    // Nothing is kept.
  }

  get length(): number {
    return this.index.starts.length;
  }
  where(i: number): string {
    return this.index.lines === null ? rowOf(this.path, i) : `${this.path}:${this.index.lines[i]}`;
  }
  async row(i: number): Promise<Row> {
    const start = this.index.starts[i] as number;
    const size = (this.index.ends[i] as number) - start;
    if (size > constants.MAX_STRING_LENGTH) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${this.where(i)}: expected at most ${constants.MAX_STRING_LENGTH} bytes, as many as a text can have, got ${size}: make the row smaller`,
      );
    }
    const bytes = Buffer.allocUnsafe(size);
    if (readSync(this.fd, bytes, 0, bytes.length, start) !== bytes.length) {
      throw new TroupeError('IO', `[data] ${this.where(i)}: the file has become shorter since it was opened`);
    }
    return parseRow(
      decodeUtf8(bytes, () => notText(this.where(i))),
      this.where(i),
    );
  }
}
