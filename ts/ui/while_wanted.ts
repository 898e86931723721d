// The life of a server that a run has started: it ends some seconds after the last run of its directory when no page is open.
import { renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readRegularFile } from '../base/regular_file';
import { reasonOf } from '../base/text';
import type { UiServer } from './server';
import { NOTE_FILE, type ServerNote } from './server_note';

/** How often it asks itself whether it is still wanted, and how long it stays when it is not. */
const ASK_MS = 2_000;
const UNWANTED_MS = 20_000;

/** Leaves a note for later runs, tells the one that started it (`pid`) its address, and resolves when nobody wants it any more. */
export async function serveWhileWanted(
  server: UiServer,
  { directory, pid }: { directory: string; pid: number },
): Promise<void> {
  const path = join(directory, NOTE_FILE);
  const note: ServerNote = { pid: process.pid, address: server.address, directory };
  const text = `${JSON.stringify(note)}\n`;
  try {
    const temporary = `${path}.${process.pid}`;
    writeFileSync(temporary, text, { mode: 0o600, flag: 'wx' });
    renameSync(temporary, path);
  } catch {
    // Later runs then start one of their own.
  }
  process.send?.({ address: server.address });
  let last = performance.now();
  await new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      if (isThere(pid) || server.watched || server.anyRunning()) last = performance.now();
      else if (performance.now() - last > UNWANTED_MS) {
        clearInterval(timer);
        resolve();
      }
    }, ASK_MS);
  });
  if (textOf(path) === text) rmSync(path, { force: true });
}

function isThere(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return reasonOf(error).includes('EPERM');
  }
}

/** null: there is none. */
function textOf(path: string): string | null {
  try {
    return readRegularFile(path);
  } catch {
    return null;
  }
}
