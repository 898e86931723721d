// Names of properties as xgrammar has to be told them: it writes them between quotes of JSON within quotes of its grammars as they are, so that
// names that need escapes would end the text early, or be no JSON.

/** Keywords of JSON schemas by what they hold. */
const SCHEMAS_BY_NAME = ['patternProperties', '$defs', 'definitions', 'dependentSchemas'];
const LITERALS = ['const', 'enum', 'default', 'examples'];

/** A JSON schema whose names come out as they are in `schema`. */
export const schemaWithEscapedNames = (schema: string): string => changed(schema, withEscapedNames);

/** The same of all schemas in a structural tag. */
export const tagWithEscapedNames = (tag: string): string => changed(tag, withEscapedNamesInTag);

/** Numbers of any length stay as they are written where no name needs an escape. */
const changed = (json: string, change: (value: unknown) => unknown): string =>
  json.includes('\\') ? JSON.stringify(change(JSON.parse(json))) : json;

function withEscapedNames(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(withEscapedNames);
  if (!isObject(schema)) return schema;
  return mapped(schema, (value, key) => {
    if (LITERALS.includes(key)) return value;
    if (key === 'required' && Array.isArray(value)) return value.map(escapedIfText);
    if (key === 'properties' && isObject(value)) return mapped(value, withEscapedNames, escaped);
    if (SCHEMAS_BY_NAME.includes(key) && isObject(value)) return mapped(value, withEscapedNames);
    return withEscapedNames(value);
  });
}

function withEscapedNamesInTag(part: unknown): unknown {
  if (Array.isArray(part)) return part.map(withEscapedNamesInTag);
  if (!isObject(part)) return part;
  const isSchema = part['type'] === 'json_schema';
  return mapped(part, (value, key) =>
    isSchema && key === 'json_schema' ? withEscapedNames(value) : withEscapedNamesInTag(value),
  );
}

const escaped = (name: string): string => JSON.stringify(name).slice(1, -1).replace(/[\\"]/g, '\\$&');
const escapedIfText = (name: unknown): unknown => (typeof name === 'string' ? escaped(name) : name);

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Entries are defined, not set: __proto__ is a name as any other. */
const mapped = (
  object: Record<string, unknown>,
  change: (value: unknown, key: string) => unknown,
  rename: (key: string) => string = (key) => key,
): Record<string, unknown> =>
  Object.fromEntries(Object.entries(object).map(([key, value]) => [rename(key), change(value, key)]));
