import { statSync } from 'node:fs';
import { TroupeError } from '../errors';
import { openJsonFile } from './json_file';
import { ParquetFile } from './parquet_file';
import { type Projection, type RowFile, type RowPath, rowsName } from './row';

/**
 * Opens .jsonl, .json (an array, or one object per line) or .parquet. Large files are not read but indexed; their rows
 * are read when they are asked for. What has a name of its own is JSONL. `keptBytes`: of rows that have been read, kept for when they are
 * asked for again.
 * @throws TroupeError IO or INVALID_DATA naming file and line
 */
export async function openRowFile(
  file: RowPath,
  projection: Projection | null = null,
  keptBytes?: number,
): Promise<RowFile> {
  if (typeof file !== 'string') return openJsonFile(file.path, { name: file.name });
  if (isDirectory(file))
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${file}: expected a .parquet, .jsonl or .json file, got a directory: name the files in it, as a list`,
    );
  if (file.endsWith('.parquet')) return await ParquetFile.open(file, projection, keptBytes);
  if (file.endsWith('.jsonl') || file.endsWith('.json')) return openJsonFile(file);
  throw new TroupeError('INVALID_DATA', `[data] ${file}: expected a .parquet, .jsonl or .json file`);
}

/** False also of what cannot be looked at, of which opening it says why. */
function isDirectory(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

/** From so many on, shares that end with whole parts differ little. */
const PARTS_PER_SHARE = 4;

/** Several files as one sequence of rows. */
export class RowFiles {
  /** Number of the first row of each file, and the number of all rows. */
  private readonly starts: number[] = [0];

  private constructor(readonly files: readonly RowFile[]) {
    for (const file of files) this.starts.push((this.starts.at(-1) as number) + file.length);
  }

  /** @throws TroupeError as {@link openRowFile}, and INVALID_DATA when there are no rows */
  static async open(
    paths: readonly RowPath[],
    projection: Projection | null = null,
    keptBytes?: number,
  ): Promise<RowFiles> {
    const opened = paths.map((path) => openRowFile(path, projection, keptBytes));
    const files = new RowFiles(await Promise.all(opened));
    if (files.length > 0) return files;
    throw new TroupeError('INVALID_DATA', `[data] ${paths.map(rowsName).join(', ')}: the data set is empty`);
  }

  get length(): number {
    return this.starts.at(-1) as number;
  }

  /** Of what is read of all rows, uncompressed. */
  get bytes(): number {
    return this.files.reduce((sum, file) => sum + file.bytes, 0);
  }

  /**
   * First rows of `n` shares that are about equal. Where files are read in many parts, none of these is in two shares: each would have to
   * be read twice.
   */
  shares(n: number): number[] {
    const parts = this.files.flatMap((file, f) => file.starts.slice(0, -1).map((row) => row + this.first(f)));
    const nearest = (row: number): number =>
      parts.reduce((best, part) => (Math.abs(part - row) < Math.abs(best - row) ? part : best), 0);
    const even = Array.from({ length: n }, (_, share) => Math.floor((this.length * share) / n));
    return parts.length < PARTS_PER_SHARE * n ? even : even.map(nearest);
  }

  forget(): void {
    for (const file of this.files) file.forget();
  }

  private first(file: number): number {
    return this.starts[file] as number;
  }

  /** The file of row `i` of all, and the number of the row there. */
  locate(i: number): { file: RowFile; row: number } {
    let f = 0;
    while ((this.starts[f + 1] as number) <= i) f++;
    return { file: this.files[f] as RowFile, row: i - (this.starts[f] as number) };
  }
}
