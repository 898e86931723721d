// What the files of a checkpoint hold, as checksums: a flipped bit, a short file or one of another step is noticed before it is loaded.

import { readdirSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { crc32 } from 'node:zlib';
import { asTroupeError } from '../base/atomic_dir';
import { crc32Combine } from '../base/crc32_combine';
import { printable } from '../base/printable';
import { isRegularFile } from '../base/regular_file';
import { readHeader } from '../checkpoint/safetensors';
import { TroupeError } from '../errors';

export interface FileRecord {
  bytes: number;
  /** Hexadecimal. */
  crc32: string;
  /** The same of each tensor by name, in a safetensors file; absent: saved before there were any, or another file. */
  tensors?: Readonly<Record<string, string>>;
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
    const found = await describe(path, []);
    if (found.bytes !== said.bytes)
      throw damaged(path, `expected ${said.bytes} bytes, but it has ${found.bytes}`);
    if (found.crc32 === said.crc32) continue;
    const where = said.tensors === undefined ? '' : `${await damagedPart(path, said.tensors)}: `;
    throw damaged(path, `${where}expected the checksum ${said.crc32}, but its bytes give ${found.crc32}`);
  }
}

const MOST_NAMED = 3;

/** What of a safetensors file is not as `said`: names of tensors, or its header. */
async function damagedPart(path: string, said: Readonly<Record<string, string>>): Promise<string> {
  let found: FileRecord['tensors'];
  try {
    found = (await describe(path, tensorsOf(path))).tensors ?? {};
  } catch {
    return 'its header is damaged';
  }
  const now = found;
  const names = Object.keys(said);
  // A name that is not there any more is damage to the header, and so is a place.
  if (names.some((name) => !Object.hasOwn(now, name))) return 'its header is damaged';
  const bad = names.filter((name) => now[name] !== said[name]);
  if (bad.length === 0) return 'its header is damaged';
  const shown = bad.slice(0, MOST_NAMED).map((name) => printable(name, { max: 200 }));
  const more = bad.length > MOST_NAMED ? ` and ${bad.length - MOST_NAMED} more` : '';
  return `of its ${names.length} tensors ${shown.join(', ')}${more} ${bad.length === 1 ? 'is' : 'are'} damaged`;
}

const damaged = (path: string, how: string): TroupeError =>
  new TroupeError(
    'IO',
    `[checkpoint] ${path} is not what was saved: ${how}: resume from another step (trainer.resume_mode=resume_path), or copy it anew`,
  );

const describeFile = (path: string): Promise<FileRecord> =>
  describe(path, path.endsWith('.safetensors') ? tensorsOf(path) : []);

interface Part {
  /** null: the header. */
  name: string | null;
  /** Behind its last byte. */
  end: number;
}

/** Of a safetensors file, all its parts in their order. */
function tensorsOf(path: string): Part[] {
  const tensors = readHeader(path);
  const header = { name: null, end: tensors[0]?.offset ?? 0 };
  return [header, ...tensors.map(({ name, offset, bytes }) => ({ name, end: offset + bytes }))];
}

/** Reads a file once, for its own checksum and those of `parts`. */
async function describe(path: string, parts: readonly Part[]): Promise<FileRecord> {
  const digest = new Digest(parts);
  let file: FileHandle | null = null;
  try {
    file = await open(path, 'r');
    const buffer = Buffer.allocUnsafe(PIECE);
    for (;;) {
      const { bytesRead } = await file.read(buffer, 0, PIECE, digest.bytes);
      if (bytesRead === 0) return digest.record();
      digest.add(buffer.subarray(0, bytesRead));
    }
  } catch (error) {
    throw asTroupeError(error, `read ${path}`);
  } finally {
    await file?.close();
  }
}

/** Of bytes that come in order; each is summed up once, and the file's checksum put together from those of its parts. */
class Digest {
  bytes = 0;
  readonly #parts: readonly Part[];
  readonly #tensors: [string, string][] = [];
  #at = 0;
  /** Of the parts that are complete. */
  #before = 0;
  /** Of the part that is being read, and its bytes so far. */
  #value = 0;
  #length = 0;

  constructor(parts: readonly Part[]) {
    this.#parts = parts;
  }

  add(piece: Buffer): void {
    for (let from = 0; from < piece.length; ) {
      const part = this.#parts[this.#at];
      const left = part === undefined ? piece.length : part.end - this.bytes;
      const taken = piece.subarray(from, from + left);
      this.#value = crc32(taken, this.#value);
      this.#length += taken.length;
      this.bytes += taken.length;
      from += taken.length;
      this.#finishParts();
    }
  }

  record(): FileRecord {
    const whole = { bytes: this.bytes, crc32: hex(this.#soFar()) };
    return this.#tensors.length === 0 ? whole : { ...whole, tensors: Object.fromEntries(this.#tensors) };
  }

  /** Several at once, where tensors are empty. */
  #finishParts(): void {
    for (; this.#parts[this.#at]?.end === this.bytes; this.#at++) {
      const { name } = this.#parts[this.#at] as Part;
      if (name !== null) this.#tensors.push([name, hex(this.#value)]);
      this.#before = this.#soFar();
      [this.#value, this.#length] = [0, 0];
    }
  }

  #soFar(): number {
    return crc32Combine(this.#before, this.#value, this.#length);
  }
}

function filesBelow(root: string, folder = ''): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const name = folder === '' ? entry.name : `${folder}/${entry.name}`;
    return entry.isDirectory() ? filesBelow(root, name) : [name];
  });
}
