// JSON schemas as xgrammar has to be told them. Names of properties it writes between quotes of JSON within quotes of its grammars as they are, so
// that names that need escapes would end the text early, or be no JSON; beside a schema of names it forgets that of their values; and bounds of
// integers it reads wrongly: in its grammar they are put in by what is written in their place.
import { isSchema, type Schema } from '../tools/parameters';
import { type IntegerRange, integerRange, integerRule } from './integer_range';

/** Keywords of JSON schemas by what they hold. */
const SCHEMAS_BY_NAME = ['patternProperties', '$defs', 'definitions', 'dependentSchemas'];
const LITERALS = ['const', 'enum', 'default', 'examples'];

/** Names of properties that may be any: they say nothing. */
export const isAnyName = (names: unknown): boolean =>
  isSchema(names) &&
  names['type'] === 'string' &&
  Object.keys(names).every((key) => ['type', 'title', 'description'].includes(key));

export class WrittenSchema {
  readonly json: string;
  private readonly ranges: IntegerRange[] = [];
  /** Nowhere else in it. */
  private readonly mark: string;

  constructor(schema: string) {
    let mark = 'integer';
    while (schema.includes(mark)) mark += '~';
    this.mark = mark;
    // Numbers of any length stay as they are written where there is nothing to change.
    const differs = /\\|"(?:m|exclusiveM)(?:in|ax)imum"|"propertyNames"/.test(schema);
    this.json = differs ? JSON.stringify(this.written(JSON.parse(schema))) : schema;
  }

  /** Its grammar lacks some rules until `complete` has put them in. */
  get isPart(): boolean {
    return this.ranges.length > 0;
  }

  /** `ebnf`: what xgrammar makes of `json`. @throws Error of bounds that leave nothing */
  complete(ebnf: string): string {
    const marks = new RegExp(`"\\\\"${this.mark}(\\d+)\\\\""`, 'g');
    return ebnf.replace(marks, (_, index) => integerRule(this.ranges[Number(index)] as IntegerRange));
  }

  private written(schema: unknown): unknown {
    if (Array.isArray(schema)) return schema.map((one) => this.written(one));
    if (!isSchema(schema)) return schema;
    const { propertyNames, ...others } = schema;
    const parts = mapped(isAnyName(propertyNames) ? others : schema, (value, key) => {
      if (LITERALS.includes(key)) return value;
      if (key === 'required' && Array.isArray(value)) return value.map(escapedIfText);
      if (key === 'properties' && isSchema(value)) return mapped(value, (one) => this.written(one), escaped);
      if (SCHEMAS_BY_NAME.includes(key) && isSchema(value)) return mapped(value, (one) => this.written(one));
      return this.written(value);
    });
    return this.withMark(parts);
  }

  private withMark(schema: Schema): Schema {
    const { type, minimum, maximum, exclusiveMinimum, exclusiveMaximum, ...rest } = schema;
    const types = [type].flat();
    const range = types.includes('integer') && !types.includes('number') ? integerRange(schema) : null;
    if (range === null) return schema;
    const integer = { const: `${this.mark}${this.ranges.push(range) - 1}` };
    const others = types.filter((one) => one !== 'integer');
    return { ...rest, anyOf: others.length === 0 ? [integer] : [integer, { ...rest, type: others }] };
  }
}

/** `tag` with all schemas in it as `change` has them. */
export async function writtenTag(tag: string, change: (schema: string) => Promise<object>): Promise<string> {
  const written = async (part: unknown): Promise<unknown> => {
    if (Array.isArray(part)) return await Promise.all(part.map(written));
    if (!isSchema(part)) return part;
    if (part['type'] === 'json_schema') return await change(JSON.stringify(part['json_schema']));
    const entries = Object.entries(part).map(async ([key, value]) => [key, await written(value)] as const);
    return Object.fromEntries(await Promise.all(entries));
  };
  return JSON.stringify(await written(JSON.parse(tag)));
}

const escaped = (name: string): string => JSON.stringify(name).slice(1, -1).replace(/[\\"]/g, '\\$&');
const escapedIfText = (name: unknown): unknown => (typeof name === 'string' ? escaped(name) : name);

/** Entries are defined, not set: __proto__ is a name as any other. */
const mapped = (
  object: Schema,
  change: (value: unknown, key: string) => unknown,
  rename: (key: string) => string = (key) => key,
): Record<string, unknown> =>
  Object.fromEntries(Object.entries(object).map(([key, value]) => [rename(key), change(value, key)]));
