// What is used of @huggingface/jinja below its Template, whose own types do not resolve in projects of ES modules.
import * as library from '@huggingface/jinja';
import { withoutRaw, withRaw } from './raw';
import { rewritten } from './tokens';

/** What an expression of a template gives. */
export interface Value {
  readonly type: string;
  readonly value: unknown;
}

/** A node of a parsed template, or one of ours: `Output` writes an expression, `Value` has its value already. */
export interface Node {
  type: string;
  [key: string]: unknown;
}

export interface Scope {
  /** Of this scope alone. */
  readonly variables: ReadonlyMap<string, Value>;
  set(name: string, data: unknown): Value;
  setVariable(name: string, value: Value): Value;
  lookupVariable(name: string): Value;
}

interface Engine {
  readonly global: Scope;
  run(program: Node): Value;
  evaluate(node: Node | undefined, scope: Scope): Value;
  /** Called by the library for the bodies of its statements. */
  evaluateBlock(statements: readonly Node[], scope: Scope): Value;
}

export const Interpreter = library.Interpreter as unknown as new (scope: Scope) => Engine;
/** Names that it lacks are those of `outer`. */
export const newScope = (outer?: Scope): Scope =>
  new library.Environment(outer as unknown as library.Environment) as unknown as Scope;

/** With the white space that Hugging Face takes off around blocks. @throws Error that says what does not parse */
export function parseTemplate(source: string): Node {
  const parts = withoutRaw(source);
  const tokens = library.tokenize(parts.text, { lstrip_blocks: true, trim_blocks: true });
  return library.parse(
    rewritten(withRaw(tokens, parts)) as Parameters<typeof library.parse>[0],
  ) as unknown as Node;
}

type ValueClass = new (value?: unknown) => Value;
/** The library does not export what it makes of data. */
const classOf = (sample: unknown): ValueClass => newScope().set('sample', sample).constructor as ValueClass;
const IntegerValue = classOf(0);
const ArrayValue = classOf([]);
const ObjectValue = classOf({});
const BooleanValue = classOf(true);
const UndefinedValue = classOf(undefined);
const FunctionValue = classOf(() => null);

/** A whole number, a truth value, or what is undefined. */
export function plainValue(data: number | boolean | undefined): Value {
  if (data === undefined) return new UndefinedValue();
  return typeof data === 'number' ? new IntegerValue(data) : new BooleanValue(data);
}

/** `from`: the scope of the call. Arguments by name come as one value, the last. */
export const newFunction = (run: (args: readonly Value[], from: Scope) => Value): Value =>
  new FunctionValue(run);

/** As Python takes a value for true. */
export const isTrue = (value: Value): boolean =>
  (value as Value & { __bool__(): Value }).__bool__().value as boolean;

/** Gives a scope data. Those that hold a bigint are made here: the library takes none. */
export function setData(scope: Scope, name: string, data: unknown): void {
  if (holdsBigint(data)) scope.setVariable(name, fromData(data));
  else scope.set(name, data);
}

const isObject = (data: unknown): data is object => typeof data === 'object' && data !== null;

const holdsBigint = (data: unknown): boolean =>
  typeof data === 'bigint' || (isObject(data) && Object.values(data).some(holdsBigint));

function fromData(data: unknown): Value {
  if (typeof data === 'bigint') return new IntegerValue(data);
  if (Array.isArray(data)) return new ArrayValue(data.map(fromData));
  if (!isObject(data)) return newScope().set('data', data);
  return new ObjectValue(new Map(Object.entries(data).map(([key, item]) => [key, fromData(item)])));
}
