// Which values a JSON schema may have, as far as that tells two schemas apart.
import { isSchema, referenced, type Schema } from '../tools/parameters';

/** Keywords that make a schema without a type one of objects, or else of arrays, to xgrammar. */
const OF_OBJECTS = ['properties', 'additionalProperties', 'unevaluatedProperties'];
const OF_ARRAYS = ['items', 'prefixItems', 'unevaluatedItems'];

const listed = (type: unknown): Set<string> => new Set([type].flat().map(String));

/** Every integer is a number. */
const holds = (types: ReadonlySet<string>, kind: string): boolean =>
  types.has(kind) || (kind === 'integer' && types.has('number'));

const disjoint = (a: ReadonlySet<string>, b: ReadonlySet<string>): boolean =>
  [...a].every((one) => !holds(b, one)) && [...b].every((one) => !holds(a, one));

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return Number.isInteger(value) ? 'integer' : typeof value;
}

export class SchemaKinds {
  private readonly known = new Map<Schema, ReadonlySet<string> | null>();

  constructor(private readonly root: Schema) {}

  /** Of one without references, constants and choices; null: any. */
  types(schema: Schema): ReadonlySet<string> | null {
    if (schema['type'] !== undefined) return listed(schema['type']);
    if (OF_OBJECTS.some((key) => Object.hasOwn(schema, key))) return new Set(['object']);
    return OF_ARRAYS.some((key) => Object.hasOwn(schema, key)) ? new Set(['array']) : null;
  }

  /** Whether all values of `schema` have one of these types. */
  within(schema: Schema, type: unknown): boolean {
    const kinds = this.of(schema);
    return kinds !== null && [...kinds].every((kind) => holds(listed(type), kind));
  }

  /** Whether no value is one of both: by their types, their constants, or constants of a property that both require. */
  apart(a: Schema, b: Schema): boolean {
    const [one, other] = [this.target(a), this.target(b)];
    if (this.unequal(one, other)) return true;
    const [kinds, others] = [this.of(one), this.of(other)];
    if (kinds === null || others === null) return false;
    if (disjoint(kinds, others)) return true;
    const objects = [kinds, others].every((all) => all.size === 1 && all.has('object'));
    return objects && requiredOf(one).some((key) => this.unequal(property(one, key), property(other, key)));
  }

  /** null: any. */
  private of(schema: Schema): ReadonlySet<string> | null {
    const known = this.known.get(schema);
    if (known !== undefined) return known;
    // What refers to itself may be anything.
    this.known.set(schema, null);
    const kinds = this.found(schema);
    this.known.set(schema, kinds);
    return kinds;
  }

  private found(schema: Schema): ReadonlySet<string> | null {
    if (Object.hasOwn(schema, '$ref')) {
      const target = referenced(schema, this.root);
      return target === null ? null : this.of(target);
    }
    const constants = constantsOf(schema);
    if (constants !== null) return new Set(constants.map(kindOf));
    const choices = schema['anyOf'] ?? schema['oneOf'] ?? schema['allOf'];
    if (!Array.isArray(choices)) return this.types(schema);
    const all = choices.map((one) => (isSchema(one) ? this.of(one) : null));
    return all.includes(null) ? null : new Set(all.flatMap((kinds) => [...(kinds ?? [])]));
  }

  /** Both have constants, and none in common. */
  private unequal(a: Schema, b: Schema): boolean {
    const [ones, others] = [constantsOf(this.target(a)), constantsOf(this.target(b))];
    if (ones === null || others === null) return false;
    const texts = new Set(ones.map((one) => JSON.stringify(one)));
    return !others.some((one) => texts.has(JSON.stringify(one)));
  }

  /** What it refers to in the end. */
  private target(schema: Schema): Schema {
    const passed = new Set<Schema>();
    let last = schema;
    for (
      let next: Schema | null = schema;
      next !== null && !passed.has(next);
      next = referenced(next, this.root)
    ) {
      passed.add(next);
      last = next;
    }
    return last;
  }
}

function constantsOf(schema: Schema): readonly unknown[] | null {
  if (Object.hasOwn(schema, 'const')) return [schema['const']];
  return Array.isArray(schema['enum']) ? schema['enum'] : null;
}

const requiredOf = ({ required }: Schema): string[] => (Array.isArray(required) ? required.map(String) : []);

/** Of a property that must be there; {}: it need not. */
function property(schema: Schema, key: string): Schema {
  const { properties } = schema;
  if (!requiredOf(schema).includes(key) || !isSchema(properties) || !Object.hasOwn(properties, key))
    return {};
  const found = properties[key];
  return isSchema(found) ? found : {};
}
