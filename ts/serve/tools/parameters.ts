// What the schema of a tool's parameters says of each of them, for families that write values without their type.

export type Schema = Readonly<Record<string, unknown>>;

const CHOICES = ['anyOf', 'oneOf', 'allOf'] as const;

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

/** A schema with more says nothing of use. */
const MOST_PARTS = 1000;

/** The schema and all that it refers to or lets choose, each once. */
function partsOf(schema: Schema, root: Schema): Set<Schema> {
  const parts = new Set([schema]);
  for (const part of parts) {
    if (parts.size > MOST_PARTS) break;
    const target = referenced(part, root);
    if (target !== null) parts.add(target);
    for (const key of CHOICES) for (const choice of schemasOf(part[key])) parts.add(choice);
  }
  return parts;
}

/** Types that a value of this schema may have; none: it does not say. */
export function typesOf(schema: Schema, root: Schema): Set<string> {
  const types = new Set<string>();
  for (const part of partsOf(schema, root)) {
    for (const type of [part['type']].flat()) if (typeof type === 'string') types.add(type);
    if (Array.isArray(part['enum'])) for (const value of part['enum']) types.add(typeOf(value));
    if ('const' in part) types.add(typeOf(part['const']));
  }
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
  for (const { properties } of partsOf(parameters, parameters)) {
    const schema = isSchema(properties) && Object.hasOwn(properties, key) ? properties[key] : null;
    if (isSchema(schema)) for (const type of typesOf(schema, parameters)) types.add(type);
  }
  return types;
}
