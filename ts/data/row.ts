import { printable } from '../base/printable';
import { TroupeError } from '../errors';

export type Row = Readonly<Record<string, unknown>>;

/** A file of rows; one that another program has just written has a name that says whose rows they are. */
export type RowPath = string | { readonly path: string; readonly name: string };

/** What messages call it. */
export const rowsName = (file: RowPath): string => (typeof file === 'string' ? file : file.name);

/** A data file as numbered rows. */
export interface RowFile {
  readonly path: string;
  readonly length: number;
  /** Columns that are read of every row; null: rows have their own. */
  readonly columns: readonly string[] | null;
  /** Every row is there already: looking at all of them costs nothing. */
  readonly inMemory: boolean;
  /** Of what is read of the rows, uncompressed. */
  readonly bytes: number;
  /** First rows of the parts that are read at once, and the number of rows. */
  readonly starts: readonly number[];
  row(index: number): Promise<Row>;
  /** "file:line" or "file, row n", for messages. */
  where(index: number): string;
  /** Gives up the memory of rows that can be read again. */
  forget(): void;
}

/** A column by its name, or also with the setting (key of the configuration, or option) that says which one it is. */
export type WantedColumn = string | { readonly name: string; readonly key: string };

export const columnName = (wanted: WantedColumn): string =>
  typeof wanted === 'string' ? wanted : wanted.name;

/** The column of the prompt. */
export const promptColumn = (name: string): WantedColumn => ({ name, key: 'data.prompt_key' });

/** Columns that a reader wants: the others of a parquet file are not read. */
export interface Projection {
  required: readonly WantedColumn[];
  optional: readonly string[];
  /** A column of images: what it has under `bytes` stays bytes, where all else is text. */
  images?: string;
}

/** @throws TroupeError INVALID_DATA naming the column, those that are there, and the setting */
export function column(row: Row, wanted: WantedColumn, where: string): unknown {
  const name = columnName(wanted);
  if (!Object.hasOwn(row, name)) throw missingColumn(wanted, Object.keys(row), where);
  return row[name];
}

/** What `work` on a row returns; what is thrown there without it names the row. */
export function atRow<T>(where: string, work: () => T): T {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof TroupeError) || error.message.includes(where)) throw error;
    const message = error.message.replace(/^\[data\] /, '');
    throw new TroupeError(error.code, `[data] ${where}: ${message}`, { cause: error });
  }
}

/** Columns of verl's data sets (data.image_key, video_key and audio_key) that a model of text cannot be shown. */
export const MEDIA_COLUMNS = ['images', 'videos', 'audios'] as const;

/** Without what it asks about, a prompt would be trained on blindly. `readable`: the column that the model is shown. @throws TroupeError INVALID_DATA naming the column */
export function refuseMedia(row: Row, where: string, readable: string | null = null): void {
  const reads = readable === null ? 'text' : 'text and images';
  for (const name of MEDIA_COLUMNS) {
    if (name === readable) continue;
    const value = Object.hasOwn(row, name) ? row[name] : null;
    const { length } = (value ?? []) as { length?: number };
    if (length === 0) continue;
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: expected the column '${name}' to be empty, got ${length ?? 'a value'}: the model reads ${reads} only, ` +
        'so leave out such rows, or the column where the prompts make sense without it' +
        (readable === null && name === 'images'
          ? ' (Qwen3.5 reads images with read_images: true of the model)'
          : ''),
    );
  }
}

export function missingColumn(wanted: WantedColumn, columns: readonly string[], where: string): TroupeError {
  const there = printable(columns.join(', '), { max: 1000 });
  const says = typeof wanted === 'string' ? '' : `: ${wanted.key} says which one it is`;
  return new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: no column '${printable(columnName(wanted))}'; the columns are ${there}${says}`,
  );
}
