import { TroupeError } from '../errors';
import { openJsonFile } from './json_file';
import { ParquetFile } from './parquet_file';
import type { Projection, RowFile } from './row';

/**
 * Opens .jsonl, .json (an array, or one object per line) or .parquet. Large files are not read but indexed; their rows
 * are read when they are asked for.
 * @throws TroupeError IO or INVALID_DATA naming file and line
 */
export async function openRowFile(file: string, projection: Projection | null = null): Promise<RowFile> {
  if (file.endsWith('.parquet')) return await ParquetFile.open(file, projection);
  if (file.endsWith('.jsonl') || file.endsWith('.json')) return openJsonFile(file);
  throw new TroupeError('INVALID_DATA', `[data] ${file}: expected a .parquet, .jsonl or .json file`);
}

/** Several files as one sequence of rows. */
export class RowFiles {
  /** Number of the first row of each file, and the number of all rows. */
  private readonly starts: number[] = [0];

  private constructor(readonly files: readonly RowFile[]) {
    for (const file of files) this.starts.push((this.starts.at(-1) as number) + file.length);
  }

  /** @throws TroupeError as {@link openRowFile}, and INVALID_DATA when there are no rows */
  static async open(paths: readonly string[], projection: Projection | null = null): Promise<RowFiles> {
    const files = new RowFiles(await Promise.all(paths.map((path) => openRowFile(path, projection))));
    if (files.length > 0) return files;
    throw new TroupeError('INVALID_DATA', `[data] ${paths.join(', ')}: the data set is empty`);
  }

  get length(): number {
    return this.starts.at(-1) as number;
  }

  /** The file of row `i` of all, and the number of the row there. */
  locate(i: number): { file: RowFile; row: number } {
    let f = 0;
    while ((this.starts[f + 1] as number) <= i) f++;
    return { file: this.files[f] as RowFile, row: i - (this.starts[f] as number) };
  }
}
