import { isUtf8 } from 'node:buffer';
import {
  type AsyncBuffer,
  asyncBufferFromFile,
  type FileMetaData,
  parquetMetadataAsync,
  parquetRead,
  parquetSchema,
} from 'hyparquet';
import { pointerHint } from '../base/lfs_pointer';
import { printable } from '../base/printable';
import { isRegularFile } from '../base/regular_file';
import { relativeTo } from '../base/relative_to';
import { reasonOf } from '../base/text';
import { TroupeError } from '../errors';
import { parquetCompressors as compressors } from './parquet_compressors';
import { type DecimalReader, withDecimals } from './parquet_decimals';
import { columnName, MEDIA_COLUMNS, missingColumn, type Projection, type Row, type RowFile } from './row';

/** Values of one page, from a row on. */
interface Chunk {
  from: number;
  data: ArrayLike<unknown>;
}

/** Columns of a row group, by name; rows are put together when they are asked for. */
type ColumnChunks = ReadonlyMap<string, ArrayLike<unknown>>;

/**
 * Opening reads the footer alone. Row groups are read when a row of them is needed, only the wanted columns of them, and as
 * many are kept as fit into `keptBytes`.
 */
export class ParquetFile implements RowFile {
  readonly inMemory = false;
  /** Of uncompressed column data; decoded they take two to four times that. */
  static readonly KEPT_BYTES = 256 * 2 ** 20;
  readonly starts: readonly number[];
  readonly bytes: number;
  private readonly groups = new Map<number, Promise<ColumnChunks>>();
  private readonly groupBytes: number[];

  private constructor(
    readonly path: string,
    private readonly buffer: AsyncBuffer,
    private readonly metadata: FileMetaData,
    readonly columns: readonly string[],
    private readonly decimals: ReadonlyMap<string, DecimalReader>,
    private readonly keptBytes: number,
    /** Column of images. */
    private readonly images: string | null,
  ) {
    const starts = [0];
    for (const group of metadata.row_groups) starts.push((starts.at(-1) as number) + Number(group.num_rows));
    this.starts = starts;
    this.groupBytes = metadata.row_groups.map((group) =>
      group.columns.reduce((sum, { meta_data: data }) => {
        const wanted = data !== undefined && columns.includes(data.path_in_schema[0] as string);
        return wanted ? sum + Number(data.total_uncompressed_size) : sum;
      }, 0),
    );
    this.bytes = this.groupBytes.reduce((sum, bytes) => sum + bytes, 0);
  }

  /** @throws TroupeError IO, or INVALID_DATA: not a parquet file, a codec that cannot be read, a missing column */
  static async open(
    file: string,
    projection: Projection | null = null,
    keptBytes = ParquetFile.KEPT_BYTES,
  ): Promise<ParquetFile> {
    let buffer: AsyncBuffer;
    isRegularFile(file);
    try {
      buffer = await asyncBufferFromFile(file);
    } catch (cause) {
      throw unreadable(file, cause);
    }
    let footer: FileMetaData;
    if (buffer.byteLength === 0) throw new TroupeError('INVALID_DATA', `[data] ${file}: the file is empty`);
    if (buffer.byteLength < SHORTEST)
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${file} is not a usable parquet file: expected at least ${SHORTEST} bytes, got ${buffer.byteLength}: it is cut short, or something else`,
      );
    try {
      footer = await parquetMetadataAsync(buffer);
    } catch (cause) {
      // It is opened by the first read.
      if (cause instanceof Error && 'syscall' in cause) throw unreadable(file, cause);
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${file} is not a usable parquet file: ${printable(reasonOf(cause))}${pointerHint(file)}`,
        {
          cause,
        },
      );
    }
    checkRows(file, footer, buffer.byteLength);
    const columns = wantedColumns(file, footer, projection);
    checkCodecs(file, footer, columns);
    const { metadata, decimals } = withDecimals(file, footer);
    return new ParquetFile(file, buffer, metadata, columns, decimals, keptBytes, projection?.images ?? null);
  }

  get length(): number {
    return this.starts.at(-1) as number;
  }

  where(index: number): string {
    return `${this.path}, row ${index}`;
  }

  forget(): void {
    this.groups.clear();
  }

  async row(index: number): Promise<Row> {
    const group = this.groupOf(index);
    const columns = await this.rowGroup(group);
    const at = index - (this.starts[group] as number);
    return Object.fromEntries(
      Array.from(columns, ([name, data]) => [name, this.value(name, data[at], index)]),
    );
  }

  private value(column: string, stored: unknown, index: number): unknown {
    const decimals = this.decimals.get(column);
    const value = decimals ? decimals(stored) : stored;
    const pictures = column === this.images || MEDIA_COLUMNS.some((name) => name === column);
    try {
      return pictures ? withBytes(value) : plain(value);
    } catch (cause) {
      if (!(cause instanceof NotText)) throw cause;
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${this.where(index)}: column ${printable(column)} holds bytes that are not valid UTF-8: ` +
          'text must be UTF-8, and other bytes are read of images alone',
        { cause },
      );
    }
  }

  /** Binary search: there may be thousands of row groups. */
  private groupOf(index: number): number {
    let low = 0;
    let high = this.starts.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if ((this.starts[middle] as number) <= index) low = middle;
      else high = middle;
    }
    return low;
  }

  private rowGroup(group: number): Promise<ColumnChunks> {
    const known = this.groups.get(group);
    if (known !== undefined) {
      // Most recently used last.
      this.groups.delete(group);
      this.groups.set(group, known);
      return known;
    }
    const columns = this.read(group);
    this.groups.set(group, columns);
    this.makeRoom();
    return columns;
  }

  /** Forgets the groups used longest ago, but never the last one used. */
  private makeRoom(): void {
    const bytes = (group: number): number => this.groupBytes[group] as number;
    let total = 0;
    for (const group of this.groups.keys()) total += bytes(group);
    for (const group of this.groups.keys()) {
      if (total <= this.keptBytes || this.groups.size === 1) return;
      this.groups.delete(group);
      total -= bytes(group);
    }
  }

  private async read(group: number): Promise<ColumnChunks> {
    const rowStart = this.starts[group] as number;
    const rowEnd = this.starts[group + 1] as number;
    const columns = new Map<string, ArrayLike<unknown>>();
    try {
      // One after another: what decoding needs besides the values is of one column at a time.
      for (const name of this.columns) columns.set(name, await this.column(name, rowStart, rowEnd));
      return columns;
    } catch (cause) {
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${this.path}, row group ${group}: ${printable(reasonOf(cause))}: the file is damaged or of an unsupported kind`,
        { cause },
      );
    }
  }

  private async column(name: string, rowStart: number, rowEnd: number): Promise<ArrayLike<unknown>> {
    const chunks: Chunk[] = [];
    await parquetRead({
      file: this.buffer,
      metadata: this.metadata,
      columns: [name],
      compressors,
      parsers: { stringFromBytes: textBytes },
      rowStart,
      rowEnd,
      onChunk: ({ columnData, rowStart: from }) => chunks.push({ from, data: columnData }),
    });
    return joined(chunks, rowEnd - rowStart);
  }
}

/** The pages of one column, in order. */
function joined(chunks: Chunk[], rows: number): ArrayLike<unknown> {
  chunks.sort((a, b) => a.from - b.from);
  const [first] = chunks;
  const column = chunks.length === 1 && first ? first.data : chunks.flatMap(({ data }) => Array.from(data));
  if (column.length !== rows) throw new Error(`a column has ${column.length} rows, expected ${rows}`);
  return column;
}

/** Rows that any file may have, and rows per byte of a larger one: what is made for every row must not be more than a file can hold. */
/** PAR1 at both ends, and the length of the footer. */
const SHORTEST = 12;
const ROWS_OF_ANY_FILE = 2 ** 24;
const ROWS_PER_BYTE = 8;

/** The footer says how many rows there are, and arrays are made of that size long before the rows are read. */
function checkRows(file: string, { row_groups: groups }: FileMetaData, bytes: number): void {
  const most = Math.max(ROWS_OF_ANY_FILE, ROWS_PER_BYTE * bytes);
  let rows = 0;
  for (const [i, { num_rows: count }] of groups.entries()) {
    const own = Number(count);
    rows += own;
    if (Number.isSafeInteger(own) && own >= 0 && rows <= most) continue;
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${file}: row group ${i} claims ${String(count)} rows: expected at most ${most} in a file of ${bytes} bytes: it is damaged`,
    );
  }
}

const unreadable = (file: string, cause: unknown): TroupeError =>
  new TroupeError('IO', `[data] cannot read ${file}${relativeTo(file)}: ${reasonOf(cause)}`, { cause });

function wantedColumns(file: string, metadata: FileMetaData, projection: Projection | null): string[] {
  const all = parquetSchema(metadata).children.map((child) => child.element.name);
  if (projection === null) return unrepeated(file, all);
  for (const one of projection.required)
    if (!all.includes(columnName(one))) throw missingColumn(one, all, `${file}, row 0`);
  const wanted = new Set([...projection.required.map(columnName), ...projection.optional]);
  return unrepeated(
    file,
    all.filter((name) => wanted.has(name)),
  );
}

function unrepeated(file: string, columns: string[]): string[] {
  const seen = new Set<string>();
  for (const name of columns) {
    if (seen.has(name))
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${file}: there are two columns ${printable(name)}: write the file again with one of them`,
      );
    seen.add(name);
  }
  return columns;
}

function checkCodecs(file: string, metadata: FileMetaData, columns: readonly string[]): void {
  for (const group of metadata.row_groups) {
    for (const { meta_data: data } of group.columns) {
      if (data === undefined || !columns.includes(data.path_in_schema[0] as string)) continue;
      const { codec } = data;
      if (codec === 'UNCOMPRESSED' || compressors[codec] !== undefined) continue;
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${file}: column ${printable(data.path_in_schema.join('.'))} is compressed with ${printable(String(codec))}, expected one of ` +
          `${Object.keys(compressors).join(', ')} or none: write the file again, for example in Python with ` +
          "pandas.read_parquet(old).to_parquet(new, compression='zstd')",
      );
    }
  }
}

const isPlainObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype;

class NotText extends Error {}

/**
 * Text stays in the bytes of its page until its row is asked for: most of the time of decoding a large row group would go into
 * moving strings about that no one has read yet.
 */
function textBytes(bytes: Uint8Array | undefined): Buffer | undefined {
  return bytes && Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** A value of a column of images: what lies under `bytes` is no text. A copy: the page that it lies in is of many rows. */
function withBytes(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withBytes);
  if (!isPlainObject(value)) return plain(value);
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [
      key,
      key === 'bytes' && item instanceof Uint8Array ? Uint8Array.from(item) : plain(item),
    ]),
  );
}

/** int64 arrives as bigint: a number where that is exact. A list or struct that is null arrives as undefined. */
function plain(value: unknown): unknown {
  if (value === undefined) return null;
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  if (Buffer.isBuffer(value)) {
    if (!isUtf8(value)) throw new NotText();
    return value.toString('utf8');
  }
  if (Array.isArray(value)) return value.map(plain);
  if (!isPlainObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}
