// What the arguments of a call that must be made look like, where they are tags around plain text, in the terms of structural tags.
import type { FunctionTool } from './families';
import { type ObjectForm, objectForms } from './object_forms';
import { isSchema, referenced, type Schema, schemasOf, typesOf } from './parameters';
import type { TagForm } from './tag_forms';
import { typedJson } from './typed_value';

/** What a grammar cannot hold calls to in a way of writing them. */
export class UnheldParameters extends Error {}

/** How a family writes a call that a grammar holds it to, between the tags around it. */
export interface WrittenCall {
  name(tool: string): string;
  parameter: {
    begin(key: string): string;
    /** Before the closing tag of a value that is no free text. */
    before: string;
    close: string;
    after: string;
  };
  end: string;
}

const NOTHING = { type: 'grammar', grammar: 'root ::= ""' };
const constant = (value: string): object => (value === '' ? NOTHING : { type: 'const_string', value });
const oneOf = (elements: object[]): object =>
  elements.length === 1 ? (elements[0] as object) : { type: 'or', elements };
const inOrder = (elements: object[]): object =>
  elements.length === 0 ? NOTHING : { type: 'sequence', elements };

/** @throws UnheldParameters */
export function tagArguments(
  form: TagForm,
  written: WrittenCall,
  { name, parameters = {} }: FunctionTool['function'],
): object {
  if (form.name.exec(written.name(name) + form.close)?.[1] !== name)
    throw new UnheldParameters(`name of the tool ${JSON.stringify(name)}`);
  const types = [parameters['type'] ?? 'object'].flat();
  const whole = ['enum', 'const'].find((key) => Object.hasOwn(parameters, key));
  if (!types.includes('object') || whole !== undefined)
    throw new UnheldParameters(
      `parameters of ${name}: expected those of an object, got ${whole ?? `type ${types.join(', ')}`}`,
    );
  const values = new Values(form, written, parameters, name);
  const all = objectForms(parameters);
  if (all === null) throw values.tooLarge();
  const forms = all.flatMap((one) => values.ofForm(one) ?? []);
  if (forms.length > 0) return oneOf(forms);
  throw new UnheldParameters(
    `parameters of ${name}: a parameter that is required cannot be written between the tags of this form`,
  );
}

/** Of schemas in a grammar, those of other places as often as they are needed. */
const MOST_CHARACTERS = 1 << 20;
/** References may lead back. */
const MOST_LEVELS = 32;

class Values {
  private characters = 0;

  constructor(
    private readonly form: TagForm,
    private readonly written: WrittenCall,
    private readonly root: Schema,
    private readonly tool: string,
  ) {}

  /** null: what is required cannot be written. */
  ofForm({ properties, required }: ObjectForm): object | null {
    const all = new Map(properties);
    for (const key of required) if (!all.has(key)) all.set(key, {});
    const elements: object[] = [];
    for (const [key, schema] of all) {
      const element = this.parameter(key, schema);
      if (element === null && required.has(key)) return null;
      if (element !== null) elements.push(required.has(key) ? element : oneOf([element, NOTHING]));
    }
    return inOrder(elements);
  }

  tooLarge(): UnheldParameters {
    return new UnheldParameters(
      `parameters of ${this.tool}: they have too many choices, or references that lead back`,
    );
  }

  private parameter(key: string, schema: Schema): object | null {
    const { begin, before, close, after } = this.written.parameter;
    const opening = begin(key);
    const value = this.value(schema, typesOf(schema, this.root), 0);
    // A name that the tags cannot have around it would be read as another.
    if (value === null || this.form.key.exec(opening)?.[1] !== key) return null;
    const free = value === ANY_TEXT;
    const tag = { type: 'tag', begin: opening, content: value, end: free ? close : before + close };
    return inOrder([tag, constant(after)]);
  }

  /** `types`: of the parameter. null: there is none that can be written. */
  private value(schema: Schema, types: ReadonlySet<string>, level: number): object | null {
    this.characters++;
    if (level > MOST_LEVELS || this.characters > MOST_CHARACTERS) throw this.tooLarge();
    const target = referenced(schema, this.root);
    if (target !== null) return this.value(target, types, level + 1);
    if (Array.isArray(schema['enum'])) return this.constants(schema['enum'], types);
    if ('const' in schema) return this.constants([schema['const']], types);
    const own = typesOf(schema, this.root);
    if (own.size > 0 && !own.has('string')) return this.json(schema);
    const choices = ['anyOf', 'oneOf', 'allOf'].flatMap((key) => schemasOf(schema[key]));
    if (choices.length === 0) return text(schema);
    const values = choices.flatMap((one) => this.value(one, types, level + 1) ?? []);
    if (values.length === 0) return null;
    return values.includes(ANY_TEXT) ? ANY_TEXT : oneOf(values);
  }

  /** Those that are read as they are meant. */
  private constants(values: readonly unknown[], types: ReadonlySet<string>): object | null {
    const readable = values.flatMap((value) => {
      const json = JSON.stringify(value);
      const written = typeof value === 'string' ? value : json;
      const read = JSON.stringify(JSON.parse(typedJson(written, types)));
      return read === json && !this.form.valueEnd.test(written) ? [constant(written)] : [];
    });
    return readable.length === 0 ? null : oneOf(readable);
  }

  private json(schema: Schema): object {
    const references = JSON.stringify(schema).match(/"\$ref":"[^"]*"/g) ?? [];
    const elsewhere = references.find((one) => !/^"\$ref":"#\/(?:\$defs|definitions)\//.test(one));
    if (elsewhere !== undefined)
      throw new UnheldParameters(
        `parameters of ${this.tool}: expected references to $defs, got ${elsewhere.slice(0, 200)}`,
      );
    const shared = Object.entries(this.root).filter(([key, one]) => SHARED.includes(key) && isSchema(one));
    const whole = references.length > 0 ? { ...Object.fromEntries(shared), ...schema } : schema;
    this.characters += JSON.stringify(whole).length;
    if (this.characters > MOST_CHARACTERS) throw this.tooLarge();
    return { type: 'json_schema', json_schema: whole };
  }
}

const SHARED = ['$defs', 'definitions'];
const ANY_TEXT: object = { type: 'any_text' };

/** Where its length counts, without what may begin a tag. */
function text({ pattern, minLength: min = 0, maxLength: max }: Schema): object {
  if (typeof pattern === 'string') return { type: 'regex', pattern };
  return min === 0 && max === undefined ? ANY_TEXT : { type: 'regex', pattern: `[^<]{${min},${max ?? ''}}` };
}
