// Methods of texts that the template engine lacks.
import type { Budget } from './budget';
import type { Value } from './engine';
import { isText, itemsOf, typeName } from './values';

export interface TextCall {
  readonly method: string;
  readonly args: readonly Value[];
  readonly named: ReadonlyMap<string, Value>;
  readonly budget: Budget;
  /** Python's str(). */
  plain(value: Value): string;
  /** Of a text its characters, of a dict its keys. */
  entries(value: Value): Value;
}

/** A text, a number, or texts. */
type Given = string | number | string[];
type Method = (value: string, call: TextCall) => Given;

const METHODS: Readonly<Record<string, Method>> = {
  join: (separator, call) => joined(separator, call),
  removeprefix(value, call) {
    const prefix = textArgument(call, 0);
    return value.startsWith(prefix) ? value.slice(prefix.length) : value;
  },
  removesuffix(value, call) {
    const suffix = textArgument(call, 0);
    return value.endsWith(suffix) ? value.slice(0, value.length - suffix.length) : value;
  },
  find: (value, call) => found(value, call),
  count: (value, call) => counted(value, call),
  splitlines: (value, call) => lines(value, call),
  format: (value, call) => formatted(value, call),
};

/** null: it is none of these. */
export function textCall(value: string, call: TextCall): Given | null {
  const method = Object.hasOwn(METHODS, call.method) ? METHODS[call.method] : undefined;
  if (method === undefined) return null;
  call.budget.whole(value, 16);
  for (const arg of call.args) call.budget.search(value, arg.value);
  return method(value, call);
}

function textArgument({ method, args }: TextCall, at: number): string {
  const arg = args[at];
  if (arg === undefined || !isText(arg)) throw new Error(`${method}() expects a text`);
  return arg.value as string;
}

function joined(separator: string, call: TextCall): string {
  const [list] = call.args;
  const entries = list === undefined ? [] : itemsOf(call.entries(list));
  let characters = 0;
  const texts = entries.map((entry) => {
    if (!isText(entry)) throw new Error(`join() expects texts, got a ${typeName(entry)}`);
    characters += separator.length + (entry.value as string).length;
    return entry.value as string;
  });
  call.budget.characters(characters);
  return texts.join(separator);
}

/** The text from the second to the third argument, which count characters as slices do; null: it would begin behind the end. */
function within(value: string, { method, args }: TextCall): { text: string; from: number } | null {
  const points = Array.from(value);
  const place = (at: number, otherwise: number): number => {
    const arg = args[at];
    if (arg === undefined || arg.type === 'NullValue') return otherwise;
    if (arg.type !== 'IntegerValue') throw new Error(`${method}() expects places as integers`);
    const place = arg.value as number;
    return place < 0 ? Math.max(0, place + points.length) : place;
  };
  const from = place(1, 0);
  const to = place(2, points.length);
  return from > points.length || from > to ? null : { text: points.slice(from, to).join(''), from };
}

function found(value: string, call: TextCall): number {
  const pattern = textArgument(call, 0);
  const part = within(value, call);
  const at = part?.text.indexOf(pattern) ?? -1;
  return part === null || at < 0 ? -1 : part.from + Array.from(part.text.slice(0, at)).length;
}

function counted(value: string, call: TextCall): number {
  const pattern = textArgument(call, 0);
  const part = within(value, call);
  if (part === null) return 0;
  if (pattern === '') return Array.from(part.text).length + 1;
  let count = 0;
  for (let at = part.text.indexOf(pattern); at >= 0; at = part.text.indexOf(pattern, at + pattern.length))
    count++;
  return count;
}

const LINE_END = '\\n-\\r\\x1c-\\x1e\\x85\\u2028\\u2029';
const LINE_ENDS = new RegExp(`\\r\\n|[${LINE_END}]`, 'g');

function lines(value: string, { args, named }: TextCall): string[] {
  const keep = (args[0] ?? named.get('keepends'))?.value === true;
  const parts: string[] = [];
  let from = 0;
  for (const { 0: end, index } of value.matchAll(LINE_ENDS)) {
    parts.push(value.slice(from, index + (keep ? end.length : 0)));
    from = index + end.length;
  }
  if (from < value.length) parts.push(value.slice(from));
  return parts;
}

/** Fields by place and by name, without a form of their own. */
function formatted(value: string, { args, named, plain, budget }: TextCall): string {
  let next = 0;
  let characters = value.length;
  const styles = new Set<string>();
  return value.replace(/\{\{|\}\}|\{([^{}]*)\}|[{}]/g, (field, name: string | undefined) => {
    if (field === '{{' || field === '}}') return field.slice(1);
    if (name === undefined || !/^\w*$/.test(name))
      throw new Error(`format() does not know the field ${field}`);
    if (/^\d*$/.test(name)) styles.add(name === '' ? 'counted' : 'numbered');
    if (styles.size > 1) throw new Error('format() expects either {} or fields with numbers, not both');
    const given = name === '' ? args[next++] : /^\d+$/.test(name) ? args[Number(name)] : named.get(name);
    if (given === undefined) throw new Error(`format() has no value for ${field}`);
    const text = plain(given);
    characters += text.length;
    budget.characters(characters);
    return text;
  });
}
