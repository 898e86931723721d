import { readFileSync } from 'node:fs';
import * as zlib from 'node:zlib';
import {
  type AsyncBuffer,
  asyncBufferFromFile,
  type Compressors,
  type FileMetaData,
  parquetMetadataAsync,
  parquetReadObjects,
} from 'hyparquet';
import { TroupeError } from '../errors';

export type Row = Readonly<Record<string, unknown>>;

/** A data file as numbered rows. */
export interface RowFile {
  readonly path: string;
  readonly length: number;
  /** Every row is there already: looking at all of them costs nothing. */
  readonly inMemory: boolean;
  row(index: number): Promise<Row>;
  /** "file:line" or "file, row n", for messages. */
  where(index: number): string;
}

/** Opens .jsonl, .json (an array) or .parquet. @throws TroupeError IO or INVALID_DATA naming file and line */
export function openRowFile(file: string): Promise<RowFile> {
  if (file.endsWith('.parquet')) return ParquetFile.open(file);
  if (file.endsWith('.jsonl')) return Promise.resolve(readJsonLines(file));
  if (file.endsWith('.json')) return Promise.resolve(readJsonArray(file));
  throw new TroupeError('INVALID_DATA', `[data] ${file}: expected a .parquet, .jsonl or .json file`);
}

class MemoryFile implements RowFile {
  readonly inMemory = true;

  constructor(
    readonly path: string,
    private readonly rows: readonly Row[],
    /** Line of each row; null for files without lines. */
    private readonly lines: readonly number[] | null,
  ) {}

  get length(): number {
    return this.rows.length;
  }
  async row(index: number): Promise<Row> {
    return this.rows[index] as Row;
  }
  where(index: number): string {
    return this.lines === null ? `${this.path}, row ${index}` : `${this.path}:${this.lines[index]}`;
  }
}

function readText(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (cause) {
    throw new TroupeError('IO', `[data] cannot read ${file}: ${(cause as Error).message}`, { cause });
  }
}

const isRow = (value: unknown): value is Row =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

function readJsonLines(file: string): RowFile {
  const rows: Row[] = [];
  const lines: number[] = [];
  readText(file)
    .split('\n')
    .forEach((line, i) => {
      if (line.trim() === '') return;
      let row: unknown;
      try {
        row = JSON.parse(line);
      } catch (cause) {
        throw new TroupeError(
          'INVALID_DATA',
          `[data] ${file}:${i + 1}: not valid JSON: ${(cause as Error).message}`,
          { cause },
        );
      }
      if (!isRow(row)) {
        throw new TroupeError(
          'INVALID_DATA',
          `[data] ${file}:${i + 1}: expected a JSON object, got ${line.trim().slice(0, 60)}`,
        );
      }
      rows.push(row);
      lines.push(i + 1);
    });
  return new MemoryFile(file, rows, lines);
}

function readJsonArray(file: string): RowFile {
  let value: unknown;
  try {
    value = JSON.parse(readText(file));
  } catch (cause) {
    if (cause instanceof TroupeError) throw cause;
    throw new TroupeError('INVALID_DATA', `[data] ${file}: not valid JSON: ${(cause as Error).message}`, {
      cause,
    });
  }
  if (!Array.isArray(value) || !value.every(isRow)) {
    throw new TroupeError('INVALID_DATA', `[data] ${file}: expected an array of objects`);
  }
  return new MemoryFile(file, value, null);
}

/** Of the codecs that the parquet reader does not bring along; zstd where this Node has it (22.15 and later). */
const zstd = (zlib as { zstdDecompressSync?: (input: Uint8Array) => Uint8Array }).zstdDecompressSync;
const compressors: Compressors = {
  GZIP: (input) => zlib.gunzipSync(input),
  BROTLI: (input) => zlib.brotliDecompressSync(input),
  ...(zstd ? { ZSTD: (input: Uint8Array) => zstd(input) } : {}),
};

/** Reads row groups when they are needed, so that a large file opens at once, and keeps as many as fit into `KEPT_BYTES`. */
class ParquetFile implements RowFile {
  readonly inMemory = false;
  /** Of uncompressed column data; as objects they take a few times that. */
  private static readonly KEPT_BYTES = 256 * 2 ** 20;
  private readonly groups = new Map<number, Promise<Row[]>>();
  private readonly starts: number[];

  private constructor(
    readonly path: string,
    private readonly buffer: AsyncBuffer,
    private readonly metadata: FileMetaData,
  ) {
    this.starts = [0];
    for (const group of metadata.row_groups)
      this.starts.push((this.starts.at(-1) as number) + Number(group.num_rows));
  }

  static async open(file: string): Promise<ParquetFile> {
    let buffer: AsyncBuffer;
    try {
      buffer = await asyncBufferFromFile(file);
    } catch (cause) {
      throw new TroupeError('IO', `[data] cannot read ${file}: ${(cause as Error).message}`, { cause });
    }
    try {
      return new ParquetFile(file, buffer, await parquetMetadataAsync(buffer));
    } catch (cause) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${file} is not a usable parquet file: ${(cause as Error).message}`,
        { cause },
      );
    }
  }

  get length(): number {
    return this.starts.at(-1) as number;
  }

  where(index: number): string {
    return `${this.path}, row ${index}`;
  }

  async row(index: number): Promise<Row> {
    let group = this.starts.findIndex((start) => start > index) - 1;
    if (group < 0) group = this.starts.length - 2;
    const rows = await this.rowGroup(group);
    return rows[index - (this.starts[group] as number)] as Row;
  }

  private rowGroup(group: number): Promise<Row[]> {
    const known = this.groups.get(group);
    if (known !== undefined) {
      // Most recently used last.
      this.groups.delete(group);
      this.groups.set(group, known);
      return known;
    }
    const rows = this.read(group);
    this.groups.set(group, rows);
    this.makeRoom();
    return rows;
  }

  /** Forgets the groups used longest ago, but never the last one used. */
  private makeRoom(): void {
    const bytes = (group: number): number => Number(this.metadata.row_groups[group]?.total_byte_size ?? 0);
    let total = 0;
    for (const group of this.groups.keys()) total += bytes(group);
    for (const group of this.groups.keys()) {
      if (total <= ParquetFile.KEPT_BYTES || this.groups.size === 1) return;
      this.groups.delete(group);
      total -= bytes(group);
    }
  }

  private async read(group: number): Promise<Row[]> {
    try {
      const rows = await parquetReadObjects({
        file: this.buffer,
        metadata: this.metadata,
        compressors,
        rowStart: this.starts[group] as number,
        rowEnd: this.starts[group + 1] as number,
      });
      return rows.map((row) => plain(row) as Row);
    } catch (cause) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${this.path}, row group ${group}: ${(cause as Error).message}`,
        { cause },
      );
    }
  }
}

/** int64 arrives as bigint: a number where that is exact. */
function plain(value: unknown): unknown {
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  if (Array.isArray(value)) return value.map(plain);
  if (isRow(value) && Object.getPrototypeOf(value) === Object.prototype) {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
  }
  return value;
}
