// One server for all runs of a directory, started by the first run that wants one and ended after the last.
import { spawn } from 'node:child_process';
import { lstatSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { makeDirectories } from '../base/make_directories';
import { readRegularFile } from '../base/regular_file';
import { packageRoot } from '../install/package_root';
import { NOTE_FILE, type ServerNote } from './server_note';

const START_MS = 10_000;
const ASK_MS = 5_000;

const noteSchema = z.object({ pid: z.number(), address: z.string(), directory: z.string() });

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

function readNote(directory: string): ServerNote | null {
  const path = join(directory, NOTE_FILE);
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
