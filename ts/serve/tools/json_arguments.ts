// Arguments as one JSON object.
import type { FunctionTool } from './families';

const KINDS = ['type', '$ref', 'enum', 'const', 'anyOf', 'oneOf', 'allOf'];

export function jsonArguments({ parameters }: FunctionTool['function']): object {
  return { type: 'json_schema', json_schema: argumentsSchema(parameters) };
}

/** Arguments are an object, also where their schema does not say so; one that says nothing, as {}, takes numbers, too. */
function argumentsSchema(parameters: Record<string, unknown> | undefined): Record<string, unknown> {
  if (parameters === undefined) return { type: 'object', properties: {} };
  return KINDS.some((key) => Object.hasOwn(parameters, key)) ? parameters : { type: 'object', ...parameters };
}
