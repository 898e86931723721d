// Commands of verl, as text, for tests of what becomes of their keys.
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { importVerl, type VerlImport } from '../../../ts/config/verl/import';
import { readVerlSource } from '../../../ts/config/verl/source';

export const directory = mkdtempSync(join(tmpdir(), 'troupe-meaning-'));
let count = 0;
/** A number that no other file of this directory has. */
export const fresh = (): number => count++;
export const write = (text: string, end = 'sh'): string => {
  const file = join(directory, `${fresh()}.${end}`);
  writeFileSync(file, text);
  return file;
};
export const OPTIONS = { environment: { PATH: process.env['PATH'], HOME: '/home/u' }, version: 'main' };
export const KEYS = 'data.train_files=a.parquet data.val_files=null actor_rollout_ref.model.path=./m';
/** A command is read as text: no script is needed for what its keys mean. */
export const read = (command: string, version = 'main'): VerlImport =>
  importVerl(readVerlSource(write(command), [], { ...OPTIONS, version, run: false }));
export const ppo = (keys: string, version?: string): VerlImport =>
  read(`python3 -m verl.trainer.main_ppo ${KEYS} ${keys}`, version);
export const why = (notes: VerlImport['notMapped'], key: string): string | undefined =>
  notes.find((note) => note.key === key)?.why;
