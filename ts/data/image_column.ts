// Whether data have images: how a model is read may follow from it.
import { existsSync } from 'node:fs';
import { openRowFile } from './row_file';

/**
 * Whether rows of data files may have images in the column `key`: a parquet file has the column; of JSON a row has something in it, any of those that are
 * in memory, else the first. No row group is read. Files that are not there have none.
 * @throws TroupeError IO or INVALID_DATA naming file and line
 */
export async function haveImages(paths: readonly string[], key: string): Promise<boolean> {
  for (const path of paths) {
    if (!existsSync(path)) continue;
    const file = await openRowFile(path, { required: [], optional: [key], images: key });
    if (file.columns !== null) {
      if (file.columns.includes(key)) return true;
      continue;
    }
    for (let i = 0; i < (file.inMemory ? file.length : Math.min(1, file.length)); i++)
      if (isThere((await file.row(i))[key])) return true;
  }
  return false;
}

const isThere = (value: unknown): boolean =>
  value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0);
