// The ways in which arguments may be an object of parameters, references and choices of their schema followed.
import { isSchema, referenced, type Schema, schemasOf } from './parameters';

export interface ObjectForm {
  properties: ReadonlyMap<string, Schema>;
  required: ReadonlySet<string>;
}

/** Schemas that are looked at: choices of choices are many soon, and references may lead back. */
const MOST_SCHEMAS = 1000;

/** `root`: of references. null: they are too many. */
export function objectForms(parameters: Schema, root: Schema = parameters): ObjectForm[] | null {
  let left = MOST_SCHEMAS;
  const formsOf = (schema: Schema): ObjectForm[] => {
    if (--left < 0) return [];
    const target = referenced(schema, root);
    const parts = [...(target === null ? [] : [target]), ...schemasOf(schema['allOf'])].map(formsOf);
    for (const key of ['anyOf', 'oneOf']) {
      const choices = schemasOf(schema[key]).filter(({ type }) => type !== 'null');
      if (choices.length > 0) parts.push(choices.flatMap(formsOf));
    }
    let forms = [ownForm(schema)];
    for (const part of parts) {
      left -= forms.length * part.length;
      if (left < 0) return [];
      forms = forms.flatMap((form) => part.map((other) => both(form, other)));
    }
    return forms;
  };
  const forms = formsOf(parameters);
  return left < 0 ? null : forms;
}

function ownForm(schema: Schema): ObjectForm {
  const properties = isSchema(schema['properties']) ? Object.entries(schema['properties']) : [];
  const required = Array.isArray(schema['required']) ? schema['required'].map(String) : [];
  return {
    properties: new Map(properties.map(([key, one]) => [key, isSchema(one) ? one : {}])),
    required: new Set(required),
  };
}

const both = (a: ObjectForm, b: ObjectForm): ObjectForm => ({
  properties: new Map([...a.properties, ...b.properties]),
  required: new Set([...a.required, ...b.required]),
});
