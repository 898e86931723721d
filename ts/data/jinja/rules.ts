// Where the library differs from Jinja, as data, and what its nodes say.
import type { Spend } from './budget';
import type { Node, Value } from './engine';
import { exact, isDict, isList, isNumber, isText, isUndefined, text } from './values';

/** Tests of Jinja that the library answers otherwise. */
export const TESTS: Readonly<Record<string, (value: Value) => boolean>> = {
  iterable: (value) => isList(value) || isDict(value) || isText(value) || isUndefined(value),
  sequence: (value) => isList(value) || isDict(value) || isText(value) || isUndefined(value),
  number: (value) => isNumber(value) || value.type === 'BooleanValue',
};
/** Tests that compare with their argument, as operators. */
export const COMPARING_TESTS: Readonly<Record<string, string>> = {
  eq: '==',
  equalto: '==',
  '==': '==',
  ne: '!=',
  '!=': '!=',
  lt: '<',
  lessthan: '<',
  '<': '<',
  le: '<=',
  '<=': '<=',
  gt: '>',
  greaterthan: '>',
  '>': '>',
  ge: '>=',
  '>=': '>=',
  in: 'in',
};
/** What texts and lists of Python have as attributes. Others are undefined. */
export const ATTRIBUTES = [
  'capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii',
  'isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip',
  'maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines',
  'startswith strip swapcase title translate upper zfill append clear copy extend insert pop remove reverse sort',
].flatMap((names) => names.split(' '));
/** Methods of a dict come before keys of the same name: `x.items` is the method, `x['items']` the key. */
export const DICT_METHODS = ['items', 'keys', 'values', 'get'];
/** What a filter of the library takes by name; another name would be left out in silence. */
const FILTER_NAMES: Readonly<Record<string, readonly string[]>> = {
  join: ['d'],
  tojson: ['indent', 'ensure_ascii', 'sort_keys', 'separators'],
};

/** What these take is made a text, or a list, of whatever it is. */
export const OF_TEXT = ['trim', 'string', 'upper', 'lower', 'capitalize', 'title', 'replace'];
export const OF_LIST = [
  'first',
  'last',
  'list',
  'sort',
  'unique',
  'reverse',
  'join',
  'map',
  'select',
  'reject',
].concat(['selectattr', 'rejectattr']);

export const mapOf = (value: Value): ReadonlyMap<string, Value> => value.value as Map<string, Value>;
export const wrapped = (value: Value): Node => ({ type: 'Value', value });

export function checkHashable(value: Value): void {
  if (isList(value) && value.type !== 'TupleValue')
    throw new Error('a list cannot be looked for by its value');
  if (isDict(value)) throw new Error('a dict cannot be looked for by its value');
}

/** Equal for equal numbers and truth values. */
export const keyOf = (value: Value, spend: Spend): unknown =>
  isNumber(value) || value.type === 'BooleanValue' ? exact(value) : `${value.type} ${text(value, spend)}`;

export const nameOfArgument = ({ type, key }: Node): string | null =>
  type === 'KeywordArgumentExpression' ? String((key as Node)['value']) : null;

/** The library leaves out arguments that it does not know. */
export function checkArguments(filter: string, args: readonly Node[]): void {
  const known = Object.hasOwn(FILTER_NAMES, filter) ? FILTER_NAMES[filter] : undefined;
  if (known === undefined) return;
  for (const arg of args) {
    const name = nameOfArgument(arg);
    if (name !== null && !known.includes(name))
      throw new Error(`filter ${filter}: the argument ${name} is not supported`);
    if (name === null && filter === 'tojson')
      throw new Error('filter tojson: arguments are supported by name only');
  }
  if (filter === 'join' && args.length > 1) throw new Error('filter join: expected one argument');
}

export function nameOf(node: Node): string {
  if (node.type === 'Identifier') return `'${String(node['value'])}'`;
  if (node.type === 'MemberExpression' && node['computed'] !== true)
    return `'${String((node['property'] as Node)['value'])}'`;
  return 'a value';
}
