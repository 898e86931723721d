// Files of rows, written and read.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Row, RowFile } from '../../../ts/data/row';
import { temporaryDirectory } from './fake_tokenizer';

/** A file of its own with this content. */
export const write = (name: string, content: string | Buffer): string => {
  const file = join(temporaryDirectory(), name);
  writeFileSync(file, content);
  return file;
};

/** All that a file has, in order. */
export const rowsOf = async (file: RowFile): Promise<Row[]> => {
  const rows: Row[] = [];
  for (let i = 0; i < file.length; i++) rows.push(await file.row(i));
  return rows;
};
