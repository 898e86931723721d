// JSON as Python's module json writes and reads it: besides the integers of any size also NaN, Infinity and -Infinity, and 1.0 is
// another value than 1.
import { randomUUID } from 'node:crypto';
import { exactJson, parseExactJson, replaceOutsideTexts } from '../../base/exact_json';

const NAME = /NaN|-?Infinity/;
const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/;
const NAME_OR_NUMBER = new RegExp(`${NAME.source}|${NUMBER.source}`);

/** A float of integral value. */
export class PythonFloat {
  readonly value: number;

  constructor(readonly text: string) {
    this.value = Number(text);
  }

  toString(): string {
    return this.text;
  }

  toJSON(): number {
    return this.value;
  }
}

const isFloat = (text: string): boolean => /[.eE]/.test(text) && Number.isInteger(Number(text));

/** Every value of it that `change` changes, in a copy. */
function mapped(value: unknown, change: (leaf: unknown) => unknown): unknown {
  if (Array.isArray(value)) return value.map((item) => mapped(item, change));
  if (typeof value !== 'object' || value === null || value instanceof PythonFloat) return change(value);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, mapped(item, change)]));
}

/** @throws SyntaxError when it is not JSON, also with these names */
export function parsePythonJson(text: string): unknown {
  const plain = NAME.test(text) ? replaceOutsideTexts(text, NAME, () => 'null') : text;
  const parsed = parseExactJson(plain);
  // No text of the data begins so.
  const mark = randomUUID();
  const marked = replaceOutsideTexts(text, NAME_OR_NUMBER, (token) =>
    /^-?[NI]/.test(token) || isFloat(token) ? `"${mark}${token}"` : token,
  );
  if (marked === text) return parsed;
  return mapped(parseExactJson(marked), (leaf) => {
    if (typeof leaf !== 'string' || !leaf.startsWith(mark)) return leaf;
    const token = leaf.slice(mark.length);
    return /^-?[NI]/.test(token) ? Number(token) : new PythonFloat(token);
  });
}

export function pythonJson(value: unknown): string {
  const mark = randomUUID();
  const text = exactJson(
    mapped(value, (leaf) =>
      leaf instanceof PythonFloat || (typeof leaf === 'number' && !Number.isFinite(leaf))
        ? `${mark}${leaf}`
        : leaf,
    ),
  );
  return text.replaceAll(new RegExp(`"${mark}([^"]+)"`, 'g'), '$1');
}
