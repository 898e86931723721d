// What the files of a checkpoint hold, as checksums: a flipped bit, a short file or one of another step is noticed before it is loaded.

import { readdirSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { crc32 } from 'node:zlib';
import { asTroupeError } from '../base/atomic_dir';
import { isRegularFile } from '../base/regular_file';
import { TroupeError } from '../errors';

export interface FileRecord {
  bytes: number;
  /** Hexadecimal. */
  crc32: string;
}

/** By path below the checkpoint, with slashes. */
export type Manifest = Readonly<Record<string, FileRecord>>;

/** Read at a time: between two pieces the process attends to its workers. */
const PIECE = 4 << 20;

/** CRC-32 of a text, in hexadecimal. */
export const checksum = (text: string): string => hex(crc32(text));

const hex = (value: number): string => value.toString(16).padStart(8, '0');

/** Of every file below `root`. */
export async function describeFiles(root: string): Promise<Manifest> {
  const manifest: Record<string, FileRecord> = {};
  for (const name of filesBelow(root).sort()) manifest[name] = await describeFile(join(root, name));
  return manifest;
}

/** `folder`: its files alone. @throws TroupeError IO naming the first file that is not what `manifest` says */
export async function checkFiles(
  root: string,
  manifest: Manifest,
  folder: string | null = null,
): Promise<void> {
  for (const [name, said] of Object.entries(manifest)) {
    if (folder !== null && dirname(name) !== folder) continue;
    const path = join(root, name);
    if (!isRegularFile(path)) throw damaged(path, 'it is missing');
    const found = await describeFile(path);
    if (found.bytes !== said.bytes)
      throw damaged(path, `expected ${said.bytes} bytes, but it has ${found.bytes}`);
    if (found.crc32 !== said.crc32)
      throw damaged(path, `expected the checksum ${said.crc32}, but its bytes give ${found.crc32}`);
  }
}

const damaged = (path: string, how: string): TroupeError =>
  new TroupeError(
    'IO',
    `[checkpoint] ${path} is not what was saved: ${how}: resume from another step (trainer.resume_mode=resume_path), or copy it anew`,
  );

async function describeFile(path: string): Promise<FileRecord> {
  let file: FileHandle | null = null;
  try {
    file = await open(path, 'r');
    const buffer = Buffer.allocUnsafe(PIECE);
    let [bytes, value] = [0, 0];
    for (;;) {
      const { bytesRead } = await file.read(buffer, 0, PIECE, bytes);
      if (bytesRead === 0) return { bytes, crc32: hex(value) };
      value = crc32(buffer.subarray(0, bytesRead), value);
      bytes += bytesRead;
    }
  } catch (error) {
    throw asTroupeError(error, `read ${path}`);
  } finally {
    await file?.close();
  }
}

function filesBelow(root: string, folder = ''): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const name = folder === '' ? entry.name : `${folder}/${entry.name}`;
    return entry.isDirectory() ? filesBelow(root, name) : [name];
  });
}
