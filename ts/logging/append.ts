import { appendFileSync, existsSync, statSync, truncateSync } from 'node:fs';

/** Appends all of `data`, or nothing: what does not fit on the disk whole is taken off again. Throws what the disk says. */
export function appendWhole(path: string, data: string | Uint8Array): void {
  const before = existsSync(path) ? statSync(path).size : 0;
  try {
    appendFileSync(path, data);
  } catch (error) {
    if (existsSync(path)) truncateSync(path, before);
    throw error;
  }
}
