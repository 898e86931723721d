// JSON as Python's module json writes and reads it: besides the integers of any size also NaN, Infinity and -Infinity.
import { randomUUID } from 'node:crypto';
import { exactJson, parseExactJson, replaceOutsideTexts } from '../../base/exact_json';

const NAME = /NaN|-?Infinity/;

/** Every value of it that `change` changes, in a copy. */
function mapped(value: unknown, change: (leaf: unknown) => unknown): unknown {
  if (Array.isArray(value)) return value.map((item) => mapped(item, change));
  if (typeof value !== 'object' || value === null) return change(value);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, mapped(item, change)]));
}

/** @throws SyntaxError when it is not JSON, also with these names */
export function parsePythonJson(text: string): unknown {
  try {
    return parseExactJson(text);
  } catch (error) {
    if (!NAME.test(text)) throw error;
  }
  // No text of the data begins so.
  const mark = randomUUID();
  const marked = replaceOutsideTexts(text, NAME, (name) => `"${mark}${name}"`);
  return mapped(parseExactJson(marked), (leaf) =>
    typeof leaf === 'string' && leaf.startsWith(mark) ? Number(leaf.slice(mark.length)) : leaf,
  );
}

export function pythonJson(value: unknown): string {
  const mark = randomUUID();
  const text = exactJson(
    mapped(value, (leaf) => (typeof leaf === 'number' && !Number.isFinite(leaf) ? `${mark}${leaf}` : leaf)),
  );
  return text.replaceAll(new RegExp(`"${mark}([^"]+)"`, 'g'), '$1');
}
