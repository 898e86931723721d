// What the arguments of a call that must be made look like as Gemma 4 writes them, in the terms of structural tags.
import type { FunctionTool } from './families';
import { gemmaKey, gemmaText, inOrder, QUOTE } from './gemma_values';
import { type ObjectForm, objectForms } from './object_forms';
import { isSchema, referenced, type Schema, schemasOf } from './parameters';
import { UnheldParameters } from './tag_arguments';

/** As often as they are needed: references may lead back, and choices multiply. */
const MOST_PARTS = 20_000;
const MOST_LEVELS = 32;
/** Of a list, one by one; longer lists have any number. */
export const MOST_COUNTED = 64;
/** Of values whose schema says nothing: lists and objects in each other. */
const FREE_LEVELS = 2;

const FREE_KEY = '[A-Za-z_][A-Za-z0-9_]*';
const NAME = /^[^\s{}()[\]<>,"']{1,256}$/;
const NUMBERS = ['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'];

/** A format of structural tags, and how many parts it has. */
interface Form {
  format: object;
  parts: number;
}

const form = (format: object, inner: readonly Form[] = []): Form => {
  const parts = inner.reduce((sum, one) => sum + one.parts, 1);
  if (parts > MOST_PARTS) throw new TooLarge();
  return { format, parts };
};

class TooLarge extends Error {}

const constant = (value: string): Form => form({ type: 'const_string', value });
const NOTHING: Form = { format: { type: 'grammar', grammar: 'root ::= ""' }, parts: 1 };
const formats = (forms: readonly Form[]): object[] => forms.map(({ format }) => format);
const inOneOf = (forms: Form[]): Form =>
  forms.length === 1 ? (forms[0] as Form) : form({ type: 'or', elements: formats(forms) }, forms);
/** null: none of them can be written. */
function either(forms: readonly (Form | null)[]): Form | null {
  const written = forms.filter((one) => one !== null);
  return written.length === 0 ? null : inOneOf(written);
}
const sequence = (...forms: Form[]): Form => form({ type: 'sequence', elements: formats(forms) }, forms);
const between = (begin: string, content: Form, end: string): Form =>
  form({ type: 'tag', begin, content: content.format, end }, [content]);
const json = (schema: Schema): Form => form({ type: 'json_schema', json_schema: schema });
const optional = (one: Form): Form => inOneOf([one, NOTHING]);

/** One of these, or more with commas between. */
function several(items: readonly Form[], atLeastOne: boolean): Form {
  const tags = items.map(({ format }) =>
    (format as { type: string }).type === 'tag'
      ? format
      : { type: 'tag', begin: '', content: format, end: '' },
  );
  const many = { type: 'tags_with_separator', tags, separator: ',', at_least_one: atLeastOne };
  return form({ ...many, stop_after_first: false }, items);
}

/** What is between the outermost brackets. @throws UnheldParameters */
export function gemmaContent({ name, parameters = {} }: FunctionTool['function']): object {
  if (!NAME.test(name)) throw new UnheldParameters(`name of the tool ${JSON.stringify(name)}`);
  const whole = ['enum', 'const'].find((key) => Object.hasOwn(parameters, key));
  const types = [parameters['type'] ?? 'object'].flat();
  if (!types.includes('object') || whole !== undefined)
    throw new UnheldParameters(
      `parameters of ${name}: expected those of an object, got ${whole ?? `type ${types.join(', ')}`}`,
    );
  try {
    const content = new Values(parameters, name).members(parameters);
    if (content !== null) return content.format;
  } catch (error) {
    if (!(error instanceof TooLarge)) throw error;
    throw new UnheldParameters(
      `parameters of ${name}: they have too many choices, or references that lead back`,
    );
  }
  throw new UnheldParameters(
    `parameters of ${name}: a parameter that is required cannot be written in this form`,
  );
}

class Values {
  private level = 0;
  /** Values that were made, also those that nothing was made of in the end. */
  private made = 0;

  constructor(
    private readonly root: Schema,
    private readonly tool: string,
  ) {}

  /** Of an object of this schema, which names them; null: there is none that can be written. */
  members(schema: Schema): Form | null {
    const all = objectForms(schema, this.root);
    if (all === null) throw new TooLarge();
    return either(all.map((one) => this.ofForm(one)));
  }

  /** In the template's order. */
  private ofForm({ properties, required }: ObjectForm): Form | null {
    const named = new Map(properties);
    for (const key of required) if (!named.has(key)) named.set(key, {});
    const members: { member: Form; required: boolean }[] = [];
    for (const [key, schema] of inOrder([...named])) {
      const written = gemmaKey(key);
      const value = written === null ? null : this.value(schema);
      if (value !== null) {
        const member = sequence(constant(written as string), value);
        members.push({ member, required: required.has(key) });
      } else if (required.has(key)) return null;
    }
    const first = members.findIndex((one) => one.required);
    const behind = (from: number): Form[] =>
      members.slice(from).map((one) => {
        const more = sequence(constant(','), one.member);
        return one.required ? more : optional(more);
      });
    if (first >= 0) {
      const before = members.slice(0, first).map(({ member }) => optional(sequence(member, constant(','))));
      return sequence(...before, (members[first] as { member: Form }).member, ...behind(first + 1));
    }
    // One of them is the first, or there is none.
    const begun = members.map(({ member }, i) => sequence(member, ...behind(i + 1)));
    return inOneOf([...begun, NOTHING]);
  }

  private value(schema: Schema): Form | null {
    if (++this.level > MOST_LEVELS || ++this.made > MOST_PARTS) throw new TooLarge();
    const value = this.ofSchema(schema);
    this.level--;
    return value;
  }

  private ofSchema(schema: Schema): Form | null {
    if (schema['$ref'] !== undefined) {
      const target = referenced(schema, this.root);
      if (target !== null) return this.value(target);
      throw new UnheldParameters(
        `parameters of ${this.tool}: expected references into the schema itself, got ${JSON.stringify(schema['$ref']).slice(0, 200)}`,
      );
    }
    if (Array.isArray(schema['enum'])) return constants(schema['enum']);
    if ('const' in schema) return constants([schema['const']]);
    const types = typesOf(schema);
    // What stands beside properties are forms of their object.
    if (!types.includes('object')) {
      const { allOf, ...rest } = schema;
      const all = schemasOf(allOf);
      if (all.length > 0) return this.value(Object.assign({}, rest, ...all) as Schema);
      const choices = [...schemasOf(schema['anyOf']), ...schemasOf(schema['oneOf'])];
      if (choices.length > 0) return either(choices.map((one) => this.value(one)));
    }
    if (types.length === 0) return free(FREE_LEVELS);
    return either(types.map((type) => this.ofType(type, schema)));
  }

  private ofType(type: string, schema: Schema): Form | null {
    switch (type) {
      case 'string':
        return text(schema);
      case 'integer':
      case 'number':
        return json({
          type,
          ...Object.fromEntries(Object.entries(schema).filter(([key]) => NUMBERS.includes(key))),
        });
      case 'boolean':
        return constants([true, false]);
      case 'null':
        return constants([null]);
      case 'array':
        return this.list(schema);
      case 'object':
        return this.object(schema);
      default:
        throw new UnheldParameters(
          `parameters of ${this.tool}: expected a type of JSON, got ${JSON.stringify(type).slice(0, 200)}`,
        );
    }
  }

  private object(schema: Schema): Form | null {
    const forms = objectForms(schema, this.root) ?? [];
    const { unevaluatedProperties, additionalProperties: more = unevaluatedProperties } = schema;
    const named = forms.some(({ properties, required }) => properties.size + required.size > 0);
    if (named || forms.length === 0 || more === false) {
      const members = this.members(schema);
      return members && between('{', members, '}');
    }
    const value = isSchema(more) ? this.value(more) : free(FREE_LEVELS - 1);
    return value && freeObject(value);
  }

  private list(schema: Schema): Form | null {
    const first = schemasOf(schema['prefixItems']).map((one) => this.value(one));
    if (first.length > MOST_COUNTED) throw new TooLarge();
    const { unevaluatedItems = first.length > 0 ? false : undefined, items = unevaluatedItems } = schema;
    const item = items === false ? null : isSchema(items) ? this.value(items) : free(FREE_LEVELS - 1);
    const [least, most] = [count(schema['minItems']) ?? 0, count(schema['maxItems'])];
    const at = (i: number): Form | null => (i < first.length ? (first[i] as Form | null) : item);
    const found = first.indexOf(null);
    const written = found < 0 ? first.length : found;
    const longest = found >= 0 || item === null ? written : Number.POSITIVE_INFINITY;
    return list(at, least, Math.min(most ?? longest, longest), first.length, item);
  }
}

/** `at`: what may stand in a place; `item`: from place `fixed` on. */
function list(
  at: (i: number) => Form | null,
  least: number,
  most: number,
  fixed: number,
  item: Form | null,
): Form | null {
  if (least > most) return null;
  const endless = most > MOST_COUNTED;
  const counted = endless ? Math.min(Math.max(fixed, least - 1), MOST_COUNTED) : most;
  if (endless && counted <= 0) return between('[', several([item as Form], least > 0), ']');
  const end = constant(']');
  // From the last place that is counted: what follows the item before it.
  let rest = end;
  if (endless) {
    const more = between(',', several([item as Form], true), ']');
    rest = least > counted ? more : inOneOf([more, end]);
  }
  for (let i = counted - 1; i >= 0; i--) {
    const one = sequence(...(i === 0 ? [] : [constant(',')]), at(i) as Form, rest);
    rest = i < least ? one : inOneOf([one, end]);
  }
  return sequence(constant('['), rest);
}

const count = (value: unknown): number | null =>
  typeof value === 'number' && Number.isInteger(value) && value >= 0 ? value : null;

/** Where its length counts, without what may begin a tag. */
function text({ pattern, minLength: least = 0, maxLength: most }: Schema): Form {
  if (typeof pattern === 'string') return between(QUOTE, form({ type: 'regex', pattern }), QUOTE);
  const counted = least !== 0 || most !== undefined;
  const content = counted ? { type: 'regex', pattern: `[^<]{${least},${most ?? ''}}` } : { type: 'any_text' };
  return between(QUOTE, form(content), QUOTE);
}

/** Those that can be written. */
function constants(values: readonly unknown[]): Form | null {
  return either(values.map(gemmaText).map((written) => (written === null ? null : constant(written))));
}

/** Types that a schema says or is taken to be of; none: any. */
function typesOf(schema: Schema): string[] {
  const { type } = schema;
  if (type !== undefined) {
    const types = [type].flat().map(String);
    return types.includes('number') ? types.filter((one) => one !== 'integer') : types;
  }
  if (['properties', 'additionalProperties'].some((key) => Object.hasOwn(schema, key))) return ['object'];
  return ['items', 'prefixItems'].some((key) => Object.hasOwn(schema, key)) ? ['array'] : [];
}

/** Any value, with so many levels of lists and objects. */
function free(levels: number): Form {
  const plain = [text({}), json({ type: 'number' }), constants([true, false, null]) as Form];
  if (levels === 0) return inOneOf(plain);
  const inner = free(levels - 1);
  return inOneOf([...plain, between('[', several([inner], false), ']'), freeObject(inner)]);
}

const freeObject = (value: Form): Form => {
  const member = sequence(form({ type: 'regex', pattern: FREE_KEY }), constant(':'), value);
  return between('{', several([member], false), '}');
};
