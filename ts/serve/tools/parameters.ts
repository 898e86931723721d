// What the schema of a tool's parameters says of each of them, for families that write values without their type.

export type Schema = Readonly<Record<string, unknown>>;

/** One way in which the arguments of a tool may be. */
export interface ObjectForm {
  properties: ReadonlyMap<string, Schema>;
  required: ReadonlySet<string>;
}

/** References in references, and choices in choices. */
const MOST_LEVELS = 16;
const CHOICES = ['anyOf', 'oneOf'] as const;

export const isSchema = (value: unknown): value is Schema =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The schemas in a list of them, as anyOf has it. */
export const schemasOf = (value: unknown): Schema[] => (Array.isArray(value) ? value.filter(isSchema) : []);

/** What a reference within `root` leads to; null: there is none, or it leads elsewhere. */
export function referenced({ $ref: reference }: Schema, root: Schema): Schema | null {
  if (typeof reference !== 'string' || !/^#(\/|$)/.test(reference)) return null;
  let found: unknown = root;
  for (const part of reference.split('/').slice(1)) {
    const key = part.replaceAll('~1', '/').replaceAll('~0', '~');
    if (!isSchema(found) || !Object.hasOwn(found, key)) return null;
    found = found[key];
  }
  return isSchema(found) ? found : null;
}

/** All forms of an object that a schema describes, references and choices followed. */
export function objectForms(schema: Schema, root: Schema = schema, level = 0): ObjectForm[] {
  if (level > MOST_LEVELS) return [];
  const inner = (one: Schema): ObjectForm[] => objectForms(one, root, level + 1);
  const properties = isSchema(schema['properties']) ? Object.entries(schema['properties']) : [];
  const required = Array.isArray(schema['required']) ? schema['required'].map(String) : [];
  let forms: ObjectForm[] = [
    {
      properties: new Map(properties.map(([key, one]) => [key, isSchema(one) ? one : {}])),
      required: new Set(required),
    },
  ];
  const target = referenced(schema, root);
  const parts = [...(target === null ? [] : [target]), ...schemasOf(schema['allOf'])].map(inner);
  for (const key of CHOICES) {
    const choices = schemasOf(schema[key]).filter(({ type }) => type !== 'null');
    if (choices.length > 0) parts.push(choices.flatMap(inner));
  }
  for (const part of parts) forms = forms.flatMap((form) => part.map((other) => both(form, other)));
  return forms;
}

const both = (a: ObjectForm, b: ObjectForm): ObjectForm => ({
  properties: new Map([...a.properties, ...b.properties]),
  required: new Set([...a.required, ...b.required]),
});

/** Types that a value of this schema may have; none: it does not say. */
export function typesOf(schema: Schema, root: Schema, level = 0): Set<string> {
  const types = new Set<string>();
  if (level > MOST_LEVELS) return types;
  for (const type of [schema['type']].flat()) if (typeof type === 'string') types.add(type);
  const values = Array.isArray(schema['enum']) ? [...schema['enum']] : [];
  if ('const' in schema) values.push(schema['const']);
  for (const value of values) types.add(typeOf(value));
  const target = referenced(schema, root);
  const choices = [...CHOICES, 'allOf'].flatMap((key) => schemasOf(schema[key]));
  for (const inner of [...(target === null ? [] : [target]), ...choices])
    for (const type of typesOf(inner, root, level + 1)) types.add(type);
  return types;
}

function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return Number.isInteger(value) ? 'integer' : typeof value;
}

/** Of a parameter of these parameters. */
export function parameterTypes(parameters: Schema | undefined, key: string): Set<string> {
  const types = new Set<string>();
  if (parameters === undefined) return types;
  for (const { properties } of objectForms(parameters)) {
    const schema = properties.get(key);
    if (schema !== undefined) for (const type of typesOf(schema, parameters)) types.add(type);
  }
  return types;
}
