// One server for all runs of a directory, started by the first run that wants one and ended after the last.
import { spawn } from 'node:child_process';
import { lstatSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { makeDirectories } from '../base/make_directories';
import { readRegularFile } from '../base/regular_file';
import { reasonOf } from '../base/text';
import { packageRoot } from '../install/package_root';
import type { RunList } from './run_list';
import type { UiServer } from './server';

/** In the runs directory, for its owner alone: it has the token. */
const NOTE = '.troupe-ui.json';
const START_MS = 10_000;
const ASK_MS = 5_000;
/** How often a server asks itself whether it is still wanted, and how long it stays when it is not. */
const ASK_SELF_MS = 2_000;
const UNWANTED_MS = 20_000;

const noteSchema = z.object({ pid: z.number(), address: z.string(), directory: z.string() });
type Note = z.infer<typeof noteSchema>;

export interface SharedOptions {
  directory: string;
  host: string;
  port: number;
}

/** The address of the server of a directory: of one that is there already, else of one that is started now. @throws Error why there is none */
export async function sharedServer(options: SharedOptions): Promise<string> {
  const { directory } = options;
  makeDirectories(directory);
  const there = readNote(directory);
  if (there !== null && (await answers(there.address))) return there.address;
  return await startServer(options);
}

function readNote(directory: string): Note | null {
  const path = join(directory, NOTE);
  try {
    const { uid, mode } = lstatSync(path);
    // One that somebody else could have written would send the reader to a server of theirs.
    if (uid !== process.getuid?.() || (mode & 0o022) !== 0) return null;
    const note = noteSchema.parse(JSON.parse(readRegularFile(path)));
    return note.directory === directory ? note : null;
  } catch {
    return null;
  }
}

async function answers(address: string): Promise<boolean> {
  try {
    const url = new URL(address);
    const headers = { authorization: `Bearer ${url.searchParams.get('token') ?? ''}` };
    const answer = await fetch(`${url.origin}/api/runs`, { headers, signal: AbortSignal.timeout(ASK_MS) });
    return answer.ok;
  } catch {
    return false;
  }
}

/** A process of its own: it must neither slow the run down nor end with it while somebody reads. */
function startServer({ directory, host, port }: SharedOptions): Promise<string> {
  const program = join(packageRoot, 'dist', 'ui', 'main.js');
  const args = [program, directory, host, String(port), String(process.pid)];
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, args, {
      detached: true,
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    });
    const settle = (work: () => void): void => {
      clearTimeout(timer);
      child.removeAllListeners();
      child.unref();
      if (child.connected) child.disconnect();
      work();
    };
    const timer = setTimeout(() => {
      child.kill();
      settle(() => reject(new Error(`it did not start within ${START_MS / 1000} s`)));
    }, START_MS);
    child.on('error', (error) => settle(() => reject(error)));
    child.on('exit', (code) =>
      settle(() => reject(new Error(`it ended with exit code ${code}: try troupe ui ${directory}`))),
    );
    child.on('message', (message) => {
      const { address, error } = message as { address?: string; error?: string };
      settle(() => (address === undefined ? reject(new Error(error)) : resolve(address)));
    });
  });
}

/** The other side: tells whoever started it, leaves a note for later runs, and resolves when nobody wants it any more. */
export async function serveWhileWanted(
  server: UiServer,
  runs: RunList,
  { directory, pid }: { directory: string; pid: number },
): Promise<void> {
  const path = join(directory, NOTE);
  const note: Note = { pid: process.pid, address: server.address, directory };
  try {
    const temporary = `${path}.${process.pid}`;
    writeFileSync(temporary, `${JSON.stringify(note)}\n`, { mode: 0o600, flag: 'wx' });
    renameSync(temporary, path);
  } catch {
    // Later runs then start one of their own.
  }
  process.send?.({ address: server.address });
  let last = performance.now();
  await new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      runs.scan();
      const wanted =
        server.live.size > 0 || isThere(pid) || runs.all().some(({ state }) => state === 'running');
      if (wanted) last = performance.now();
      else if (performance.now() - last > UNWANTED_MS) {
        clearInterval(timer);
        resolve();
      }
    }, ASK_SELF_MS);
  });
  if (readNote(directory)?.pid === process.pid) rmSync(path, { force: true });
}

function isThere(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return reasonOf(error).includes('EPERM');
  }
}
