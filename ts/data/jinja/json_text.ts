// Python's json.dumps, which transformers puts in the place of Jinja's tojson.

import { floatText } from '../../base/python_float';
import { quotedSteps, type Spend } from './budget';
import type { Value } from './engine';
import { isDict, isList, itemsOf, typeName } from './values';

export interface JsonLayout {
  /** Blanks of one level; null: all on one line. */
  indent: number | null;
  ensureAscii: boolean;
  sortKeys: boolean;
  /** Between items, and between a key and its value. */
  separators: readonly [string, string];
  /** Called for every value. */
  spend: Spend;
}

/** @throws for what JSON cannot hold */
export function jsonText(value: Value, layout: JsonLayout, depth = 0): string {
  layout.spend(1);
  switch (value.type) {
    case 'NullValue':
      return 'null';
    case 'BooleanValue':
    case 'IntegerValue':
      return String(value.value);
    case 'FloatValue':
      return number(value.value as number);
    case 'StringValue':
      return quoted(value.value as string, layout);
  }
  if (isList(value)) {
    const items = itemsOf(value).map((item) => jsonText(item, layout, depth + 1));
    return enclosed('[', items, ']', layout, depth);
  }
  if (!isDict(value)) throw new Error(`tojson: a value of type ${typeName(value)} is no JSON`);
  const entries = [...(value.value as Map<string, Value>)];
  if (layout.sortKeys) entries.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  const items = entries.map(
    ([key, item]) => quoted(key, layout) + layout.separators[1] + jsonText(item, layout, depth + 1),
  );
  return enclosed('{', items, '}', layout, depth);
}

function number(value: number): string {
  if (Number.isFinite(value)) return floatText(value);
  return Number.isNaN(value) ? 'NaN' : value > 0 ? 'Infinity' : '-Infinity';
}

function quoted(value: string, { ensureAscii, spend }: JsonLayout): string {
  spend(quotedSteps(value.length));
  const text = JSON.stringify(value);
  if (!ensureAscii) return text;
  return text.replace(/[\x7f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

function enclosed(
  open: string,
  items: readonly string[],
  close: string,
  { indent, separators }: JsonLayout,
  depth: number,
): string {
  if (indent === null || items.length === 0) return `${open}${items.join(separators[0])}${close}`;
  const line = (level: number): string => `\n${' '.repeat(indent * level)}`;
  return `${open}${line(depth + 1)}${items.join(separators[0] + line(depth + 1))}${line(depth)}${close}`;
}
