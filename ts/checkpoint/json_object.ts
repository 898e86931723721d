import { readFileSync } from 'node:fs';
import { withoutNames } from '../base/json_floats';
import { describeShape, shapeProblem } from '../base/json_shape';
import { printable } from '../base/printable';
import { isRegularFile } from '../base/regular_file';
import { decodeUtf8 } from '../base/utf8';
import { TroupeError } from '../errors';

// JSON files of models and checkpoints, and headers of safetensors. Nothing in a file is trusted.

/** What a text is a part of: the area that errors begin with. */
export type JsonArea = 'model' | 'lora' | 'checkpoint' | 'export' | 'safetensors';

const invalid = (area: JsonArea, message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[${area}] ${message}`);

/** The object in a file. @throws TroupeError IO when it cannot be read, INVALID_MODEL when it holds something else */
export const readObject = (file: string, area: JsonArea): Record<string, unknown> =>
  parseObject(readText(file, area), file, area);

/** A file of UTF-8, without a byte-order mark. @throws TroupeError IO when it cannot be read, INVALID_MODEL for other bytes */
export function readText(file: string, area: JsonArea): string {
  isRegularFile(file);
  return decodeUtf8(readBytes(file), (line) => {
    throw invalid(area, `${file}:${line}: not valid UTF-8: write the file again as UTF-8`);
  });
}

/** @throws TroupeError INVALID_MODEL when `text`, which is `what`, is no JSON object, repeats a key, or is nested beyond reason */
export function parseObject(text: string, what: string, area: JsonArea): Record<string, unknown> {
  let value: unknown;
  let json = text;
  try {
    if (text.includes('Infinity')) json = withoutNames(text);
    value = JSON.parse(json);
  } catch (e) {
    throw invalid(area, `${what} is not valid JSON: ${printable((e as Error).message)}`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalid(area, `${what} is not a JSON object`);
  const problem = shapeProblem(json);
  if (problem !== null) {
    const { line, what: why } = describeShape(json, problem);
    throw invalid(area, `${what}, line ${line}: ${why}`);
  }
  return value as Record<string, unknown>;
}

function readBytes(file: string): Buffer {
  try {
    return readFileSync(file);
  } catch (e) {
    throw new TroupeError('IO', `cannot read ${file}: ${(e as Error).message}`, { cause: e });
  }
}
