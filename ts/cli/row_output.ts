// A file that a command makes of the rows of another one.
import { existsSync, lstatSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { asTroupeError } from '../base/atomic_dir';
import { checkFileAtomic, writeFileAtomic } from '../base/atomic_file';
import { exactJson } from '../base/exact_json';
import { notFinite } from '../base/not_finite';
import { printable } from '../base/printable';
import type { Row } from '../data/row';
import { TroupeError } from '../errors';
import { UsageError } from './report';

/** Before any work is done for it. @throws UsageError, TroupeError IO */
export function checkOutput(command: string, output: string): void {
  if (!output.endsWith('.jsonl'))
    throw new UsageError(`${command}: --output: expected a .jsonl file, got ${output}`);
  const refuse = (message: string): never => {
    throw new TroupeError('IO', `${command}: --output: ${message}`);
  };
  const directory = dirname(resolve(output));
  if (!existsSync(directory) || !statSync(directory).isDirectory())
    refuse(`there is no directory ${directory}`);
  try {
    // A link that leads nowhere is there, too.
    if (lstatSync(output, { throwIfNoEntry: false }) !== undefined)
      refuse(`${output} is there already: move it away, or name a new file`);
    checkFileAtomic(output);
  } catch (error) {
    throw asTroupeError(error, `write ${output}`);
  }
}

/** Before a row is written again with one more column. `option`: that names it. @throws TroupeError INVALID_DATA */
export function checkOutputRow(row: Row, name: string, option: string, where: string): void {
  const refuse = (message: string): never => {
    throw new TroupeError('INVALID_DATA', `[data] ${where}: ${message}`);
  };
  if (Object.hasOwn(row, name)) refuse(`there is a column '${name}' already: name another one by ${option}`);
  const found = notFinite(row);
  if (found !== null)
    refuse(
      `${printable(found.at, { max: 200 })} is ${found.number}, which a .jsonl file cannot hold: expected finite numbers in rows that ` +
        '--output writes again: correct it, or leave it out',
    );
}

/** All of them or nothing. @throws TroupeError NO_SPACE, IO */
export function writeRows(output: string, rows: readonly Row[]): void {
  writeFileAtomic(output, Buffer.concat(rows.map((row) => Buffer.from(`${exactJson(row)}\n`))));
}
