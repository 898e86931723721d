// What the scripts that make pages of docs/ share.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { commandLine } from './command_line.mjs';

/** Writes a page, or with --check on the command line says whether it is what would be written (exit code 1 when not). */
export function writeOrCheck(page, text) {
  const { check } = commandLine({ options: { check: { type: 'boolean' } } }).values;
  if (!check) writeFileSync(page, text);
  else if (readFileSync(page, 'utf8') !== text) {
    console.error(`docs/${path.basename(page)} is not what the code says: run npm run docs`);
    process.exitCode = 1;
  }
}
