import { printable } from '../base/printable';
import { TroupeError } from '../errors';

export type Row = Readonly<Record<string, unknown>>;

/** A data file as numbered rows. */
export interface RowFile {
  readonly path: string;
  readonly length: number;
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

/** Columns that a reader wants: the others of a parquet file are not read. */
export interface Projection {
  required: readonly string[];
  optional: readonly string[];
}

/** @throws TroupeError INVALID_DATA naming the column and those that are there */
export function column(row: Row, name: string, where: string): unknown {
  if (!Object.hasOwn(row, name)) throw missingColumn(name, Object.keys(row), where);
  return row[name];
}

export function missingColumn(name: string, columns: readonly string[], where: string): TroupeError {
  return new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: no column '${printable(name)}'; the columns are ${printable(columns.join(', '), { max: 1000 })}`,
  );
}
