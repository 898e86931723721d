// Copies directories of large files without keeping the process from other things.
import { type FileHandle, mkdir, open, readdir } from 'node:fs/promises';
import { join } from 'node:path';

const PIECE = 4 << 20;

/** Copies what is below `source` into the directory `target`, which exists, and flushes it to the disk. @throws errors of the file system */
export async function copyTree(source: string, target: string): Promise<void> {
  for (const entry of await readdir(source, { withFileTypes: true })) {
    const [from, to] = [join(source, entry.name), join(target, entry.name)];
    if (entry.isDirectory()) {
      await mkdir(to);
      await copyTree(from, to);
    } else await copyFile(from, to);
  }
  await flushed(target, 'r', async () => {});
}

async function copyFile(from: string, to: string): Promise<void> {
  const input = await open(from, 'r');
  try {
    await flushed(to, 'wx', async (output) => {
      const buffer = Buffer.allocUnsafe(PIECE);
      for (let at = 0; ; ) {
        const { bytesRead } = await input.read(buffer, 0, PIECE, at);
        if (bytesRead === 0) return;
        for (let done = 0; done < bytesRead; )
          done += (await output.write(buffer, done, bytesRead - done, at + done)).bytesWritten;
        at += bytesRead;
      }
    });
  } finally {
    await input.close();
  }
}

/** Opens, uses, flushes and closes. */
async function flushed(path: string, flags: string, use: (file: FileHandle) => Promise<void>): Promise<void> {
  const file = await open(path, flags);
  try {
    await use(file);
    await file.sync();
  } finally {
    await file.close();
  }
}
