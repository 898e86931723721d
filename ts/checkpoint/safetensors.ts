import { closeSync, existsSync, fstatSync, openSync, readSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { pointerHint } from '../base/lfs_pointer';
import { printable } from '../base/printable';
import { isRegularFile } from '../base/regular_file';
import { show } from '../base/text';
import { decodeUtf8 } from '../base/utf8';
import { TroupeError } from '../errors';
import type { NativeScales } from '../native/bridge';
import { parseObject, readObject } from './json_object';

// Reading safetensors headers: u64 little-endian header length, JSON header, then the tensors' bytes without holes.
// Only headers are read here; the core reads the tensors. Nothing in a file is trusted.

export interface StoredTensor {
  name: string;
  file: string; // path
  dtype: string; // safetensors name
  shape: number[];
  offset: number; // absolute, bytes
  bytes: number;
  fileSize: number;
  /** Of packed values (checkpoint/packed_tensor.ts), which the other fields are about. */
  packing?: Packing;
}

/** What packed values are made numbers with. */
export interface Packing {
  /** One for each block of each matrix, row by row; or one for all of them. */
  scales: StoredTensor;
  scaleDtype: NativeScales['dtype'];
  /** Rows and columns of a block; one at an end may be smaller. */
  block: readonly [rows: number, columns: number];
  /** The files have each matrix with rows for columns of the shape. */
  transposed: boolean;
}

const DTYPE_BYTES: Readonly<Record<string, number>> = {
  F64: 8,
  I64: 8,
  U64: 8,
  F32: 4,
  I32: 4,
  U32: 4,
  F16: 2,
  BF16: 2,
  I16: 2,
  U16: 2,
  I8: 1,
  U8: 1,
  BOOL: 1,
  F8_E4M3: 1,
  F8_E5M2: 1,
  F8_E8M0: 1,
};

const MAX_HEADER = 100 * 2 ** 20; // the format's own limit

const entrySchema = z.object({
  dtype: z.string(),
  shape: z.array(z.number().int().min(0)),
  data_offsets: z.tuple([z.number().int().min(0), z.number().int().min(0)]),
});

/** Of tensors and files, as the file says. */
const shownName = (name: string): string => printable(name, { max: 200 });

const invalid = (message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[safetensors] ${message}`);

/** Every tensor of one file, in file order. Throws INVALID_MODEL for a malformed file, IO when it cannot be read. */
export function readHeader(file: string): StoredTensor[] {
  const { text, dataStart, fileSize } = readHeaderText(file);
  const header = parseObject(text, `${file}: the header`, 'safetensors');
  const tensors: StoredTensor[] = [];
  for (const [name, value] of Object.entries(header)) {
    if (name !== '__metadata__') tensors.push(parseEntry(file, name, value, dataStart, fileSize));
  }
  tensors.sort((a, b) => a.offset - b.offset || a.bytes - b.bytes);
  checkCoverage(file, tensors, dataStart, fileSize);
  return tensors;
}

function readHeaderText(file: string): { text: string; dataStart: number; fileSize: number } {
  isRegularFile(file);
  const fd = wrapIo(`open ${file}`, () => openSync(file, 'r'));
  try {
    const fileSize = fstatSync(fd).size;
    const prefix = Buffer.alloc(8);
    if (wrapIo(`read ${file}`, () => readSync(fd, prefix, 0, 8, 0)) < 8) {
      throw invalid(`${file}: ${fileSize} bytes, too short for a safetensors file: it looks truncated`);
    }
    const length = prefix.readBigUInt64LE(0);
    if (length > BigInt(Math.min(MAX_HEADER, fileSize - 8))) {
      throw invalid(
        `${file}: its header claims ${length} bytes but the file has ${fileSize}${pointerHint(file) || ': it is truncated or not safetensors'}`,
      );
    }
    const bytes = Buffer.alloc(Number(length));
    if (wrapIo(`read ${file}`, () => readSync(fd, bytes, 0, bytes.length, 8)) < bytes.length) {
      throw invalid(`${file}: ended inside its header: it is truncated`);
    }
    const text = decodeUtf8(bytes, () => {
      throw invalid(`${file}: its header is not valid UTF-8: it is damaged or not safetensors`);
    });
    return { text, dataStart: 8 + bytes.length, fileSize };
  } finally {
    closeSync(fd);
  }
}

function parseEntry(
  file: string,
  name: string,
  value: unknown,
  dataStart: number,
  fileSize: number,
): StoredTensor {
  const where = `${file}: tensor '${shownName(name)}'`;
  const parsed = entrySchema.safeParse(value);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw invalid(`${where}: ${issue?.path.join('.')}: ${issue?.message}`);
  }
  const { dtype, shape, data_offsets } = parsed.data;
  const [start, end] = data_offsets;
  if (end < start) throw invalid(`${where}: data_offsets [${start}, ${end}] run backwards`);
  const width = Object.hasOwn(DTYPE_BYTES, dtype) ? DTYPE_BYTES[dtype] : undefined;
  const expected = width === undefined ? null : shape.reduce((n, d) => n * d, width);
  if (expected !== null && expected !== end - start) {
    throw invalid(
      `${where}: shape ${show(shape)} of ${dtype} takes ${expected} bytes but data_offsets span ${end - start}`,
    );
  }
  return { name, file, dtype, shape, offset: dataStart + start, bytes: end - start, fileSize };
}

function checkCoverage(file: string, sorted: StoredTensor[], dataStart: number, fileSize: number): void {
  let at = dataStart;
  for (const [i, t] of sorted.entries()) {
    if (t.offset < at)
      throw invalid(
        `${file}: tensor '${shownName(t.name)}' overlaps '${shownName(sorted[i - 1]?.name ?? '')}'`,
      );
    if (t.offset > at)
      throw invalid(
        `${file}: ${t.offset - at} bytes before tensor '${shownName(t.name)}' belong to no tensor`,
      );
    at = t.offset + t.bytes;
    if (at > fileSize) {
      throw invalid(
        `${file}: tensor '${shownName(t.name)}' ends at byte ${at} but the file has ${fileSize}: it is truncated`,
      );
    }
  }
  if (at !== fileSize)
    throw invalid(`${file}: ${fileSize - at} bytes after the last tensor belong to no tensor`);
}

/**
 * The tensors of a checkpoint in `dir`: `${base}.safetensors`, or the files named by `${base}.safetensors.index.json`.
 * A map from name to location. Throws INVALID_MODEL naming the file and tensor at fault.
 */
export function readTensors(dir: string, base = 'model'): Map<string, StoredTensor> {
  const single = path.join(dir, `${base}.safetensors`);
  if (existsSync(single)) return new Map(readHeader(single).map((t) => [t.name, t]));
  const index = path.join(dir, `${base}.safetensors.index.json`);
  if (existsSync(index)) return readShards(dir, index);
  const pickled =
    existsSync(path.join(dir, 'pytorch_model.bin')) ||
    existsSync(path.join(dir, 'pytorch_model.bin.index.json'));
  throw invalid(
    `${dir}: expected ${base}.safetensors or ${base}.safetensors.index.json, found neither` +
      (pickled ? '. pytorch_model.bin is a pickle, which can run code: convert it to safetensors first' : ''),
  );
}

function readShards(dir: string, index: string): Map<string, StoredTensor> {
  const parsed = readObject(index, 'safetensors');
  const weightMap = z.record(z.string(), z.string()).safeParse(parsed.weight_map);
  if (!weightMap.success) throw invalid(`${index}: expected weight_map to map tensor names to file names`);
  const shards = new Map<string, Map<string, StoredTensor>>();
  for (const file of new Set(Object.values(weightMap.data))) {
    if (path.basename(file) !== file || file === '..' || file === '.') {
      throw invalid(`${index}: file name '${shownName(file)}' leads out of the checkpoint directory`);
    }
    if (!existsSync(path.join(dir, file)))
      throw invalid(`${index}: names ${shownName(file)}, which is not in ${dir}`);
    shards.set(file, new Map(readHeader(path.join(dir, file)).map((t) => [t.name, t])));
  }
  const tensors = new Map<string, StoredTensor>();
  for (const [name, file] of Object.entries(weightMap.data)) {
    const tensor = shards.get(file)?.get(name);
    if (tensor === undefined)
      throw invalid(
        `${index}: places tensor '${shownName(name)}' in ${shownName(file)}, which does not hold it`,
      );
    tensors.set(name, tensor);
  }
  for (const [file, held] of shards) {
    for (const name of held.keys()) {
      if (!tensors.has(name))
        throw invalid(`${index}: ${file} holds tensor '${shownName(name)}', which the index does not list`);
      const owner = weightMap.data[name];
      if (owner !== file)
        throw invalid(`${index}: tensor '${shownName(name)}' is both in ${owner} and in ${file}`);
    }
  }
  return tensors;
}

function wrapIo<T>(what: string, action: () => T): T {
  try {
    return action();
  } catch (e) {
    throw new TroupeError('IO', `cannot ${what}: ${(e as Error).message}`, { cause: e });
  }
}
