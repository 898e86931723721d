// What a JSON schema asks for that its grammar would not hold a response to, as measured with xgrammar 0.1.27: it passes over such keywords in silence.
import { MOST_COUNTED } from '../tools/gemma_arguments';
import { objectForms } from '../tools/object_forms';
import { isSchema, referenced, type Schema } from '../tools/parameters';
import { integerRange } from './integer_range';
import { SchemaKinds } from './schema_kinds';
import { isAnyName } from './written_schema';

/** `pointer`: of the keyword in its schema, a fragment (RFC 6901). */
export interface UnheldKeyword {
  pointer: string;
  reason: string;
}

/** Nowhere held. What is in no vocabulary of JSON schemas is an annotation. */
const UNHELD = [
  ...['not', 'if', 'then', 'else', 'dependentRequired', 'dependentSchemas', 'dependencies'],
  ...['$dynamicRef', '$recursiveRef'],
];
/** One of these decides alone, in this order: whatever stands beside it is passed over. */
const DECIDING = ['$ref', 'const', 'enum', 'anyOf', 'oneOf', 'allOf'] as const;
/** Keywords that say something about values of one type. */
const BOUNDS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'];
const OF_TYPE: Readonly<Record<string, readonly string[]>> = {
  number: [...BOUNDS, 'multipleOf'],
  string: ['minLength', 'maxLength', 'pattern', 'format'],
  array: [
    ...['items', 'prefixItems', 'unevaluatedItems', 'additionalItems', 'minItems', 'maxItems'],
    ...['uniqueItems', 'contains', 'minContains', 'maxContains'],
  ],
  object: [
    ...['properties', 'required', 'additionalProperties', 'unevaluatedProperties'],
    ...['patternProperties', 'propertyNames', 'minProperties', 'maxProperties'],
  ],
};
const CONSTRAINTS = new Set([...UNHELD, ...DECIDING, 'type', ...Object.values(OF_TYPE).flat()]);
const UNHELD_OF_ARRAYS = ['additionalItems', 'contains', 'minContains', 'maxContains'];

/** Formats that grammars know; the other ones that JSON Schema has; what else there is are annotations. */
const HELD_FORMATS = [
  ...['date', 'time', 'date-time', 'duration', 'email', 'hostname', 'ipv4', 'ipv6', 'uuid'],
  ...['uri', 'uri-reference', 'uri-template', 'json-pointer', 'relative-json-pointer'],
];
const UNHELD_FORMATS = ['idn-email', 'idn-hostname', 'iri', 'iri-reference', 'regex'];

const COUNTS = ['minProperties', 'maxProperties'];
/** Of values that are not written as JSON. */
const UNHELD_BARE = ['patternProperties', 'propertyNames', ...COUNTS];

/** Each is compared with each. */
const MOST_CHOICES = 256;

const NOT_ENFORCED = 'it is not enforced';

const escaped = (key: string): string => key.replaceAll('~', '~0').replaceAll('/', '~1');

/** The first one; null: a response that the grammar lets through is one of this schema. */
export const unheldKeyword = (schema: Schema): UnheldKeyword | null =>
  new KeywordCheck(schema, [[schema, '#']], false).first();

/** Of parameters that are written one by one, those alone that are named. `bare`: their values are not JSON. */
export function unheldInParameters(parameters: Schema, bare: boolean): UnheldKeyword | null {
  const whole = [...UNHELD, 'patternProperties', 'propertyNames', ...COUNTS].find((key) =>
    Object.hasOwn(parameters, key),
  );
  if (whole !== undefined) return { pointer: `#/${whole}`, reason: NOT_ENFORCED };
  // Too many forms have a refusal of their own.
  const forms = objectForms(parameters) ?? [];
  const properties = forms.flatMap((form) => [...form.properties]);
  const parts = properties.map(([name, one]): Part => [one, `#/properties/${escaped(name)}`]);
  return new KeywordCheck(parameters, parts, bare).first();
}

type Part = [schema: Schema, pointer: string];
/** A keyword, and the reason. */
type Unheld = [keyword: string, reason: string] | null;

class KeywordCheck {
  private readonly kinds: SchemaKinds;
  private readonly seen = new Set<Schema>();

  constructor(
    private readonly root: Schema,
    private readonly open: Part[],
    private readonly bare: boolean,
  ) {
    this.kinds = new SchemaKinds(root);
  }

  /** Schemas that nothing refers to are not looked at. */
  first(): UnheldKeyword | null {
    for (let next = this.open.pop(); next !== undefined; next = this.open.pop()) {
      const [schema, pointer] = next;
      if (this.seen.has(schema)) continue;
      this.seen.add(schema);
      const [keyword, reason] = this.unheld(schema, pointer) ?? [];
      if (keyword !== undefined)
        return { pointer: `${pointer}/${escaped(keyword)}`, reason: reason as string };
    }
    return null;
  }

  private unheld(schema: Schema, at: string): Unheld {
    const never = [...UNHELD, ...(this.bare ? UNHELD_BARE : [])].find((key) => Object.hasOwn(schema, key));
    if (never !== undefined) return [never, NOT_ENFORCED];
    const deciding = DECIDING.find((key) => Object.hasOwn(schema, key));
    return deciding === undefined ? this.ofType(schema, at) : this.decided(schema, deciding, at);
  }

  private decided(schema: Schema, deciding: (typeof DECIDING)[number], at: string): Unheld {
    const beside = Object.keys(schema).find(
      (key) => CONSTRAINTS.has(key) && key !== deciding && key !== 'type',
    );
    if (beside !== undefined) return [beside, `it is not enforced beside ${deciding}`];
    const { type, ...rest } = schema;
    if (type !== undefined && !this.kinds.within(rest, type))
      return ['type', `it is not enforced beside ${deciding}, which allows values of other types`];
    const given = schema[deciding];
    if (deciding === '$ref') return this.reference(schema, String(given));
    if (deciding === 'const' || deciding === 'enum' || !Array.isArray(given)) return null;
    if (deciding === 'allOf' && given.length > 1) return ['allOf', 'only one schema in it is enforced'];
    if (deciding === 'oneOf' && !this.apart(given))
      return [
        'oneOf',
        'that no two of them hold is not enforced, unless their types, or constants of a property that both require, tell them apart: use anyOf',
      ];
    for (const [i, one] of given.entries()) this.visit(one, `${at}/${deciding}/${i}`);
    return null;
  }

  private reference(schema: Schema, given: string): Unheld {
    if (!/^#(\/|$)/.test(given))
      return ['$ref', "only references into the schema itself are enforced, as '#/$defs/name'"];
    // One that leads nowhere has its own refusal.
    this.visit(referenced(schema, this.root), given);
    return null;
  }

  private apart(choices: readonly unknown[]): boolean {
    const all = choices.filter(isSchema);
    if (all.length < choices.length || all.length > MOST_CHOICES) return false;
    return all.every((one, i) => all.slice(0, i).every((other) => this.kinds.apart(one, other)));
  }

  private ofType(schema: Schema, at: string): Unheld {
    const types = this.kinds.types(schema);
    if (types === null) {
      const untyped = Object.values(OF_TYPE)
        .flat()
        .find((key) => Object.hasOwn(schema, key));
      return untyped === undefined ? null : [untyped, 'it is not enforced where there is no type beside it'];
    }
    return (
      (types.has('number') || types.has('integer') ? this.ofNumber(schema, types) : null) ??
      (types.has('string') ? this.ofString(schema) : null) ??
      (types.has('array') ? this.ofArray(schema, at) : null) ??
      (types.has('object') ? this.ofObject(schema, at) : null)
    );
  }

  private ofNumber(schema: Schema, types: ReadonlySet<string>): Unheld {
    if (Object.hasOwn(schema, 'multipleOf')) return ['multipleOf', NOT_ENFORCED];
    const bounds = BOUNDS.filter((key) => Object.hasOwn(schema, key));
    const [bound] = bounds;
    if (bound === undefined) return null;
    if (types.has('number')) {
      const least = bounds.length === 1 ? schema['minimum'] : undefined;
      return least === 0 || least === 1
        ? null
        : [
            bound,
            'of the bounds of a number only a minimum of 0 or 1 is enforced, without another; those of an integer are',
          ];
    }
    return integerRange(schema) === null
      ? [bound, `expected numbers from ${Number.MIN_SAFE_INTEGER} to ${Number.MAX_SAFE_INTEGER}`]
      : null;
  }

  private ofString(schema: Schema): Unheld {
    const { format } = schema;
    if (UNHELD_FORMATS.includes(format as string) || (this.bare && HELD_FORMATS.includes(format as string)))
      return ['format', `${format} is not enforced`];
    const other = ['minLength', 'maxLength', 'pattern'].find((key) => Object.hasOwn(schema, key));
    if (other !== undefined && HELD_FORMATS.includes(format as string))
      return [other, `it is not enforced beside the format ${format}`];
    if (other !== undefined && other !== 'pattern' && Object.hasOwn(schema, 'pattern'))
      return [other, 'it is not enforced beside pattern'];
    return null;
  }

  private ofArray(schema: Schema, at: string): Unheld {
    const never = UNHELD_OF_ARRAYS.find((key) => Object.hasOwn(schema, key));
    if (never !== undefined) return [never, NOT_ENFORCED];
    if (Object.hasOwn(schema, 'uniqueItems') && schema['uniqueItems'] !== false)
      return ['uniqueItems', NOT_ENFORCED];
    const long = this.bare && ['minItems', 'maxItems'].find((key) => Number(schema[key]) > MOST_COUNTED);
    if (long) return [long, `more than ${MOST_COUNTED} are not counted`];
    const { prefixItems, items, unevaluatedItems } = schema;
    if (Array.isArray(prefixItems))
      for (const [i, one] of prefixItems.entries()) this.visit(one, `${at}/prefixItems/${i}`);
    this.visit(items, `${at}/items`);
    this.visit(unevaluatedItems, `${at}/unevaluatedItems`);
    return null;
  }

  private ofObject(schema: Schema, at: string): Unheld {
    const { required, propertyNames, additionalProperties, unevaluatedProperties } = schema;
    const properties = isSchema(schema['properties']) ? schema['properties'] : {};
    const missing = (Array.isArray(required) ? required : []).find(
      (name) => !Object.hasOwn(properties, String(name)),
    );
    if (missing !== undefined)
      return ['required', `${JSON.stringify(missing)} is not enforced, which is not among properties`];
    const named = Object.keys(properties).length > 0;
    const more = ['additionalProperties', 'unevaluatedProperties'].find(
      (key) => Object.hasOwn(schema, key) && schema[key] !== false,
    );
    if (named && more !== undefined)
      return [
        more,
        'beside properties it would let these come again with any other value: say false, or leave it out',
      ];
    if (Object.hasOwn(schema, 'patternProperties')) return this.ofPatterns(schema, named, at);
    if (Object.hasOwn(schema, 'propertyNames') && !isAnyName(propertyNames)) {
      if (named) return ['propertyNames', 'it is not enforced beside properties'];
      const beside = [...COUNTS, 'additionalProperties', 'unevaluatedProperties'].find(
        (key) => Object.hasOwn(schema, key) && schema[key] !== true,
      );
      if (beside !== undefined) return [beside, 'it is not enforced beside propertyNames'];
      if (isSchema(propertyNames)) this.visit({ type: 'string', ...propertyNames }, `${at}/propertyNames`);
    }
    for (const [name, one] of Object.entries(properties))
      this.visit(one, `${at}/properties/${escaped(name)}`);
    this.visit(additionalProperties, `${at}/additionalProperties`);
    this.visit(unevaluatedProperties, `${at}/unevaluatedProperties`);
    return null;
  }

  private ofPatterns(schema: Schema, named: boolean, at: string): Unheld {
    const { patternProperties } = schema;
    if (named) return ['patternProperties', 'it is not enforced beside properties'];
    const beside = [...COUNTS, 'propertyNames'].find((key) => Object.hasOwn(schema, key));
    if (beside !== undefined) return [beside, 'it is not enforced beside patternProperties'];
    const patterns = isSchema(patternProperties) ? Object.entries(patternProperties) : [];
    if (patterns.length > 1)
      return ['patternProperties', 'only one pattern is enforced: a name may be of several'];
    for (const [pattern, one] of patterns) this.visit(one, `${at}/patternProperties/${escaped(pattern)}`);
    return null;
  }

  private visit(schema: unknown, pointer: string): void {
    if (isSchema(schema)) this.open.push([schema, pointer]);
  }
}
