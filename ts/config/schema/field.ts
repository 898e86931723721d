import { z } from 'zod';
import { parseByteSize } from '../../base/byte_size';
import { MAX_TEMPERATURE, MIN_TEMPERATURE, RUN_LIMITS } from '../../base/limits';
import { notFinite } from '../../base/not_finite';

// The configuration schema is data: one tree of the nodes below per program (train, sft). Defaults, validation, the
// nearest-name search, `troupe validate` and docs/config.md all read the same tree.

/** What a value may be: the words an error message uses, and the zod schema that decides. */
export interface ValueType<T> {
  readonly name: string;
  readonly schema: z.ZodType<T>;
  /** Where it is one of some names: these. */
  readonly names?: readonly string[];
}

interface FieldOf<T> {
  readonly kind: 'field';
  readonly type: ValueType<T>;
  readonly doc: string;
  /** Default; `undefined`: the user must give a value, unless `from` names where it comes from. */
  readonly value: T | undefined;
  /** Dotted path of the key whose resolved value this one takes when it is not given (or null). */
  readonly from: string | null;
}

/** A key with a meaning. `T` is the type of its resolved value. */
export type Field<T> = FieldOf<T>;

/** A key of verl that has no meaning here: any value is accepted, and listed with the reason. */
export interface Ignored {
  readonly kind: 'ignored';
  readonly reason: string;
}

/** A key of verl of which Troupe does one thing only: the accepted values say so; any other is an error with the reason. */
export interface Fixed {
  readonly kind: 'fixed';
  readonly accepts: readonly unknown[];
  readonly reason: string;
  /** Of a section that is one leaf: its keys that must be off, by what they may be beside null and false. */
  readonly off?: Readonly<Record<string, readonly unknown[]>>;
  /** Of a section that is one leaf: the only keys that it may have, by what they may be beside null. */
  readonly only?: Readonly<Record<string, readonly unknown[]>>;
}

/** An older name of another key. */
export interface Moved {
  readonly kind: 'moved';
  /** A sibling, a dotted path from the root, or a dot and a key of the root. */
  readonly to: string;
}

export type Leaf = Field<unknown> | Ignored | Fixed | Moved;
export interface Section {
  readonly [key: string]: Leaf | Section;
}

type KeptKeys<S> = { [K in keyof S]: S[K] extends Ignored | Fixed | Moved ? never : K }[keyof S];

/** The validated, frozen tree that a schema describes: fields only, every default and derived value filled in. */
export type Resolved<S> = {
  readonly [K in KeptKeys<S>]: S[K] extends FieldOf<infer T>
    ? T
    : S[K] extends object
      ? Resolved<S[K]>
      : never;
};

const SHAPE = Symbol('shape');

/** A section that may also have sections of other names, which have the keys of `shape`: see {@link withNames}. */
export const named = <S extends Section>(section: S, shape: Section): S =>
  Object.defineProperty({ ...section }, SHAPE, { value: shape });

/** The schema with the sections that `tree` names. Itself where it names none. */
export function withNames<S extends Section>(schema: S, tree: Readonly<Record<string, unknown>>): S {
  const shape = (schema as { [SHAPE]?: Section })[SHAPE];
  const changed: Record<string, Leaf | Section> = {};
  for (const [key, value] of Object.entries(tree)) {
    const entry = Object.hasOwn(schema, key) ? schema[key] : shape;
    if (entry === undefined || isLeaf(entry) || typeof value !== 'object' || value === null) continue;
    const own = withNames(entry, value as Readonly<Record<string, unknown>>);
    if (own !== schema[key]) changed[key] = own;
  }
  return Object.keys(changed).length === 0 ? schema : { ...schema, ...changed };
}

export function isLeaf(node: Leaf | Section): node is Leaf {
  return typeof node['kind'] === 'string';
}

/** null: there is no such key, or it is a section. */
export function leafAt(schema: Section, key: string): Leaf | null {
  let node: Leaf | Section | undefined = schema;
  for (const name of key.split('.')) {
    if (node === undefined || isLeaf(node)) return null;
    node = Object.hasOwn(node, name) ? (node[name] as Leaf | Section) : undefined;
  }
  return node !== undefined && isLeaf(node) ? node : null;
}

/** null: there is no such key, or it is a leaf. */
export function sectionAt(schema: Section, path: string): Section | null {
  let node: Leaf | Section | undefined = schema;
  for (const key of path.split('.')) {
    if (node === undefined || isLeaf(node)) return null;
    node = Object.hasOwn(node, key) ? (node[key] as Leaf | Section) : undefined;
  }
  return node === undefined || isLeaf(node) ? null : node;
}

/** Whether a value stands for none, as it does in verl's composed configurations: the -1 of a key whose default it is. */
export const isUnset = (leaf: Leaf | null, value: unknown): boolean =>
  value === -1 && leaf?.kind === 'field' && leaf.value === -1;

export function field<T>(type: ValueType<T>, value: NoInfer<T>, doc: string): Field<T> {
  return { kind: 'field', type, doc, value, from: null };
}

export function required<T>(type: ValueType<T>, doc: string): Field<T> {
  return { kind: 'field', type, doc, value: undefined, from: null };
}

/** A key that follows another one (`from`) unless it is given. */
export function derived<T>(type: ValueType<T>, from: string, doc: string): Field<T> {
  return { kind: 'field', type, doc, value: undefined, from };
}

export function ignored(reason: string): Ignored {
  return { kind: 'ignored', reason };
}

export function fixed(accepts: readonly unknown[], reason: string): Fixed {
  return { kind: 'fixed', accepts, reason };
}

/** A key of verl for a feature that is missing here: only what does not ask for it is accepted. */
export function needs(feature: string, ...harmless: unknown[]): Fixed {
  return fixed([null, ...harmless], missing(feature));
}

/**
 * A whole section of verl for a feature that is missing here: accepted while none of the keys in `off` asks for it.
 * @param off dotted keys, and what they may be beside null and false
 */
export function sectionNeeds(feature: string, off: Readonly<Record<string, readonly unknown[]>>): Fixed {
  return { kind: 'fixed', accepts: [null], reason: missing(feature), off };
}

/** The words for a feature that is missing, in every message. */
export function missing(feature: string): string {
  return `needs ${feature}, which ${/^([a-z]+ )?[a-z]*[^su]s\b/.test(feature) ? 'are' : 'is'} not there`;
}

/** Whether a value is one that a fixed key accepts. */
export function isAccepted({ accepts, off, only }: Fixed, value: unknown): boolean {
  const isOneOf = (allowed: readonly unknown[], given: unknown): boolean =>
    allowed.some((one) => JSON.stringify(one) === JSON.stringify(given));
  if (value === null || isOneOf(accepts, value)) return true;
  if (typeof value !== 'object' || Array.isArray(value)) return false;
  if (only !== undefined)
    return Object.entries(value as object).every(
      ([key, given]) => Object.hasOwn(only, key) && (given === null || isOneOf(only[key] ?? [], given)),
    );
  if (off === undefined) return false;
  return Object.entries(off).every(([path, harmless]) => {
    const given = path
      .split('.')
      .reduce<unknown>((node, key) => (node as Record<string, unknown> | null | undefined)?.[key], value);
    return given === undefined || isOneOf([null, false, ...harmless], given);
  });
}

/** Where an older name leads, as a path from the root. */
export const movedTo = (to: string, from: string): string => {
  if (to.startsWith('.')) return to.slice(1);
  return to.includes('.') ? to : from.slice(0, from.lastIndexOf('.') + 1) + to;
};

export function moved(to: string): Moved {
  return { kind: 'moved', to };
}

function bounds(min?: number, max?: number): string {
  if (min !== undefined && max !== undefined) return ` from ${min} to ${max}`;
  if (min !== undefined) return ` >= ${min}`;
  return max !== undefined ? ` <= ${max}` : '';
}

export function int(min?: number, max?: number): ValueType<number> {
  let schema = z.int();
  if (min !== undefined) schema = schema.min(min);
  if (max !== undefined) schema = schema.max(max);
  return { name: `an integer${bounds(min, max)}`, schema };
}

/** Compute dtype, also under PyTorch's short names. */
export const dtype: ValueType<'float32' | 'bfloat16'> = {
  name: 'float32 (fp32) or bfloat16 (bf16)',
  schema: z
    .enum(['float32', 'fp32', 'bfloat16', 'bf16'])
    .transform((value) => (value === 'float32' || value === 'fp32' ? 'float32' : 'bfloat16')),
};

/** -1 ("off" in verl) or an integer >= 1. */
export const intOrOff: ValueType<number> = {
  name: 'an integer >= 1, or -1 for none',
  schema: z.int().refine((value) => value === -1 || value >= 1),
};

/** How often something is done in a supervised run. */
export const everySteps: ValueType<number | 'after_each_epoch'> = {
  name: 'an integer >= -1, or after_each_epoch',
  schema: z.union([z.int().min(-1), z.literal('after_each_epoch')]),
};

/** A count of something, of which no run has more than the limit (base/limits.ts). */
export const count = (most: keyof typeof RUN_LIMITS, least = 1): ValueType<number> =>
  int(least, RUN_LIMITS[most]);

export const temperature: ValueType<number> = {
  name: `0, or a number from ${MIN_TEMPERATURE} to ${MAX_TEMPERATURE}`,
  schema: z.number().refine((value) => value === 0 || (value >= MIN_TEMPERATURE && value <= MAX_TEMPERATURE)),
};

export function num(min?: number, max?: number): ValueType<number> {
  let schema = z.number();
  if (min !== undefined) schema = schema.min(min);
  if (max !== undefined) schema = schema.max(max);
  return { name: `a number${bounds(min, max)}`, schema };
}

export function above(limit: number, max?: number): ValueType<number> {
  const schema = z.number().gt(limit);
  if (max === undefined) return { name: `a number > ${limit}`, schema };
  return { name: `a number > ${limit} and <= ${max}`, schema: schema.max(max) };
}

/** A duration. */
export const seconds: ValueType<number> = above(0, RUN_LIMITS.seconds);

/** A share that is not nothing. */
export const share: ValueType<number> = {
  name: 'a number > 0 and <= 1',
  schema: z.number().gt(0).max(1),
};

/** In bytes. */
export const byteSize: ValueType<number> = {
  name: 'a size such as 80GiB, or a number of bytes',
  schema: z.union([
    z.int().min(1),
    z
      .string()
      .refine((text) => parseByteSize(text) !== null)
      .transform((text) => parseByteSize(text) as number),
  ]),
};

export const bool: ValueType<boolean> = { name: 'true or false', schema: z.boolean() };
export const str: ValueType<string> = { name: 'a string', schema: z.string().min(1) };
/** A number is a name, too: one that a file or a command line spells is a string by then (reading/names.ts). */
export const name: ValueType<string> = {
  name: 'a string',
  schema: z.union([z.string().min(1), z.number().transform(String)]),
};

/** A name of which paths are made, to places below a directory. */
export const pathName: ValueType<string> = {
  name: 'a name that as a path leads into its directory (no / in front, no .. as a part, not . alone, no NUL)',
  schema: name.schema.refine((text) => {
    const parts = text.split('/');
    const isBelow = !text.startsWith('/') && !parts.includes('..');
    return isBelow && !text.includes('\0') && parts.some((part) => part !== '' && part !== '.');
  }),
};

export function choice<const T extends string>(...values: T[]): ValueType<T> {
  return {
    name: `one of ${values.join(', ')}`,
    schema: z.enum(values) as unknown as z.ZodType<T>,
    names: values,
  };
}

export const numOrStr: ValueType<number | string> = {
  name: 'a number or a string',
  schema: z.union([z.number(), z.string()]),
};

/** One string, or a list of them; always resolved to a list. */
export const strings: ValueType<readonly string[]> = {
  name: 'a string or a list of strings',
  schema: z.union([
    z
      .string()
      .min(1)
      .transform((value) => [value]),
    z.array(z.string().min(1)),
  ]),
};

/** One number, or a list of them; always resolved to a list. */
export const numbers: ValueType<readonly number[]> = {
  name: 'a number or a list of numbers',
  schema: z.union([z.number().transform((value) => [value]), z.array(z.number())]),
};

/** Weight of what was before in a moving average. */
export const momentum: ValueType<number> = {
  name: 'a number from 0 and below 1',
  schema: z.number().min(0).lt(1),
};

export const betas: ValueType<readonly [number, number]> = {
  name: 'two numbers from 0 and below 1',
  schema: z.tuple([z.number().min(0).lt(1), z.number().min(0).lt(1)]),
};

export const mapping: ValueType<Readonly<Record<string, unknown>>> = {
  name: 'a mapping without NaN or infinities',
  // The configuration of a run is written as JSON, which has null for them.
  schema: z.record(z.string(), z.unknown()).refine((value) => notFinite(value) === null),
};

/** An empty text, which is what Hydra makes of `key=`, is null, too, unless it is a value of the type. */
export function orNull<T>(type: ValueType<T>): ValueType<T | null> {
  const emptyIsNull = !type.schema.safeParse('').success;
  const given = (value: unknown): unknown => (value === '' && emptyIsNull ? null : value);
  return { name: `${type.name}, or null`, schema: z.preprocess(given, type.schema.nullable()) };
}
