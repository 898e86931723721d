import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeRows } from '../../ts/data/python/dataset_process';
import type { WrittenSet } from '../../ts/data/python/protocol';
import { RowSpool } from '../../ts/data/python/row_spool';
import type { Row } from '../../ts/data/row';
import { RowFiles } from '../../ts/data/row_file';

// Data set classes in Python, made in their process with the python3 of this machine.

export const directory = mkdtempSync(join(tmpdir(), 'python-dataset-'));
export const write = (name: string, text: string): string => {
  const path = join(directory, name);
  writeFileSync(path, text);
  return path;
};
// A copy: Python writes beside what it imports.
export const CLASSES = write(
  'python_dataset.py',
  readFileSync(join(__dirname, '..', 'fixtures', 'python_dataset.py'), 'utf8'),
);
const python = 'python3';

const spools: RowSpool[] = [];
/** Of all data sets that were made. */
export const closeSpools = (): void => {
  for (const spool of spools.splice(0)) spool.close();
};

export interface Asked {
  name?: string;
  path?: string;
  python?: string;
  config?: object;
  files?: string[];
  timeout?: number;
  images?: string;
}

export async function made({
  name = 'Given',
  path = CLASSES,
  config = {},
  files = [],
  ...asked
}: Asked): Promise<{ set: WrittenSet | undefined; spool: RowSpool; rows: RowFiles }> {
  const spool = RowSpool.create();
  spools.push(spool);
  const [set] = await writeRows(
    { path, name, python: asked.python ?? python },
    {
      config: { prompt_key: 'prompt', ...config },
      tokenizer: directory,
      chat_template: null,
      reads_images: false,
      columns: { prompt: 'prompt', source: 'data_source', images: asked.images ?? 'images' },
      timeout: asked.timeout ?? 60,
    },
    [{ what: 'training', files, max_samples: -1 }],
    [spool],
  );
  const rows = await RowFiles.open([{ path: spool.path, name: `${name}, training` }]);
  return { set, spool, rows };
}

/** The rows that Python makes of these expressions. */
export async function rowsOf(expressions: string[], more: Asked = {}): Promise<Row[]> {
  const { rows } = await made({ config: { rows: expressions }, ...more });
  return await Promise.all(
    expressions.map((_, i) => {
      const { file, row } = rows.locate(i);
      return file.row(row);
    }),
  );
}
