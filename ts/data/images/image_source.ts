// What a row of a data set has for an image.
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { isRegularFile } from '../../base/regular_file';
import { reasonOf, show } from '../../base/text';
import { TroupeError } from '../../errors';

/** What qwen_vl_utils heeds of an image: a size of its own, which images here do not have. */
const OF_ITS_OWN = ['min_pixels', 'max_pixels', 'resized_height', 'resized_width'] as const;

/**
 * Bytes of an image: themselves, or Hugging Face's {bytes, path}, a path (`image`, `path`), a file: address, or a data: address with base64. Paths
 * are those from the directory of the data file on. @throws TroupeError INVALID_DATA or IO
 */
export async function imageBytes(value: unknown, dataFile: string, where: string): Promise<Uint8Array> {
  if (value instanceof Uint8Array) return value;
  if (typeof value === 'string') return await named(value, dataFile, where);
  if (typeof value === 'object' && value !== null) {
    const given = value as Record<string, unknown>;
    const own = OF_ITS_OWN.find((key) => (given[key] ?? null) !== null);
    if (own !== undefined)
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${where}: an image with '${own}': expected the pixels of all images in data.mm_processor_kwargs (min_pixels, max_pixels)`,
      );
    const { bytes, image, path: file, url } = given;
    if (bytes instanceof Uint8Array) return bytes;
    const name = [image, file, url].find((text) => typeof text === 'string');
    if (name !== undefined) return await named(name as string, dataFile, where);
  }
  throw new TroupeError(
    'INVALID_DATA',
    `[data] ${where}: expected {bytes, path}, a path or a data: address, got ${show(value)}`,
  );
}

async function named(name: string, dataFile: string, where: string): Promise<Uint8Array> {
  if (/^data:/i.test(name)) {
    const comma = name.indexOf(',');
    if (comma < 0 || !/;base64$/i.test(name.slice(0, comma)))
      throw new TroupeError(
        'INVALID_DATA',
        `[data] ${where}: expected a data: address in base64, got ${show(name)}`,
      );
    return Buffer.from(name.slice(comma + 1), 'base64');
  }
  if (/^https?:/i.test(name))
    throw new TroupeError(
      'INVALID_DATA',
      `[data] ${where}: ${show(name)}: images are not fetched from the network: expected a path, or the bytes in the row`,
    );
  let file = path.resolve(path.dirname(dataFile), name);
  try {
    if (/^file:/i.test(name)) file = fileURLToPath(name);
    isRegularFile(file);
    return await readFile(file);
  } catch (cause) {
    throw new TroupeError('IO', `[data] ${where}: cannot read the image ${show(name)}: ${reasonOf(cause)}`, {
      cause,
    });
  }
}
