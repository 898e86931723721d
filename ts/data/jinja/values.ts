// Values of the template engine as Python has them: equality, text, repr.
import { floatText } from '../../base/python_float';
import { comparedSteps, quotedSteps, type Spend } from './budget';
import type { Value } from './engine';

const PYTHON_TYPES: Readonly<Record<string, string>> = {
  StringValue: 'str',
  IntegerValue: 'int',
  FloatValue: 'float',
  BooleanValue: 'bool',
  NullValue: 'NoneType',
  UndefinedValue: 'Undefined',
  ArrayValue: 'list',
  TupleValue: 'tuple',
  ObjectValue: 'dict',
  KeywordArgumentsValue: 'dict',
  NamespaceValue: 'Namespace',
  FunctionValue: 'function',
};

export const typeName = ({ type }: Value): string => PYTHON_TYPES[type] ?? type;

export const isText = (value: Value): boolean => value.type === 'StringValue';
export const isUndefined = (value: Value): boolean => value.type === 'UndefinedValue';
export const isList = ({ type }: Value): boolean => type === 'ArrayValue' || type === 'TupleValue';
export const isDict = ({ type }: Value): boolean =>
  type === 'ObjectValue' || type === 'KeywordArgumentsValue';
export const isNumber = ({ type }: Value): boolean => type === 'IntegerValue' || type === 'FloatValue';
const isNumeric = (value: Value): boolean => isNumber(value) || value.type === 'BooleanValue';

export const itemsOf = (value: Value): readonly Value[] => value.value as Value[];
const entriesOf = (value: Value): ReadonlyMap<string, Value> => value.value as Map<string, Value>;

/** Whole numbers as bigints once they may be beyond what doubles tell apart. */
export function exact({ value }: Value): number | bigint {
  if (typeof value === 'bigint') return value;
  const number = Number(value);
  return Number.isInteger(number) && !Number.isSafeInteger(number) ? BigInt(number) : number;
}

/** Python's ==. */
export function equal(a: Value, b: Value, spend: Spend): boolean {
  spend(1);
  if (isNumeric(a) && isNumeric(b)) return exact(a) === exact(b);
  if (isDict(a) && isDict(b)) {
    const [one, other] = [entriesOf(a), entriesOf(b)];
    if (one.size !== other.size) return false;
    return [...one].every(([key, item]) => {
      const there = other.get(key);
      return there !== undefined && equal(item, there, spend);
    });
  }
  if (a.type !== b.type) return false;
  if (isList(a)) {
    const [one, other] = [itemsOf(a), itemsOf(b)];
    return one.length === other.length && one.every((item, i) => equal(item, other[i] as Value, spend));
  }
  if (isText(a)) {
    const [one, other] = [a.value as string, b.value as string];
    if (one.length !== other.length) return false;
    spend(comparedSteps(one.length));
  }
  return isUndefined(a) || a.value === b.value;
}

/** Python's str(), which is what a template writes. @throws for a function, whose text would mean nothing to anyone */
export function text(value: Value, spend: Spend): string {
  if (isText(value)) return value.value as string;
  return isUndefined(value) ? '' : repr(value, spend);
}

/** Python's repr(). */
function repr(value: Value, spend: Spend): string {
  spend(1);
  const each = (item: Value): string => repr(item, spend);
  switch (value.type) {
    case 'StringValue':
      return quoted(value.value as string, spend);
    case 'IntegerValue':
      return String(value.value);
    case 'FloatValue':
      return floatText(value.value as number);
    case 'BooleanValue':
      return value.value ? 'True' : 'False';
    case 'NullValue':
      return 'None';
    case 'UndefinedValue':
      return 'Undefined';
    case 'ArrayValue':
      return `[${itemsOf(value).map(each).join(', ')}]`;
    case 'TupleValue': {
      const items = itemsOf(value).map(each);
      return items.length === 1 ? `(${items[0]},)` : `(${items.join(', ')})`;
    }
    case 'ObjectValue':
    case 'KeywordArgumentsValue':
      return `{${Array.from(entriesOf(value), ([key, item]) => `${quoted(key, spend)}: ${each(item)}`).join(', ')}}`;
    default:
      throw new Error(`a ${typeName(value)} stands where a text is written: is it to be called?`);
  }
}

const ESCAPES: Readonly<Record<string, string>> = {
  '\\': '\\\\',
  '\n': '\\n',
  '\r': '\\r',
  '\t': '\\t',
};
/** What Python does not show as it is: control, format, surrogate, private and unassigned characters, and separators but the space. */
const HIDDEN = /[\\\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

function quoted(value: string, spend: Spend): string {
  spend(quotedSteps(value.length));
  const quote = value.includes("'") && !value.includes('"') ? '"' : "'";
  const body = value.replace(HIDDEN, (character) => ESCAPES[character] ?? escaped(character));
  return `${quote}${quote === "'" ? body.replaceAll("'", "\\'") : body}${quote}`;
}

function escaped(character: string): string {
  const code = character.codePointAt(0) as number;
  const hex = code.toString(16);
  if (code < 0x100) return `\\x${hex.padStart(2, '0')}`;
  return code < 0x10000 ? `\\u${hex.padStart(4, '0')}` : `\\U${hex.padStart(8, '0')}`;
}
