// What a response must be, as grammars: JSON of a schema, or calls of tools that were asked for.
import type { Grammar } from '../../rollout/request';
import { badField } from '../call/api_error';
import type { FunctionTool, ToolFamily } from '../tools/families';

type ResponseFormat =
  | { type: 'text' }
  | { type: 'json_object' }
  | { type: 'json_schema'; json_schema: { schema: Record<string, unknown> } };

export function jsonGrammar(format: ResponseFormat | null | undefined): Grammar | null {
  if (format === null || format === undefined || format.type === 'text') return null;
  const schema = format.type === 'json_object' ? { type: 'object' } : format.json_schema.schema;
  return { kind: 'json-schema', schema: JSON.stringify(schema) };
}

/** @throws ApiError 400 where a tool is demanded that is not offered */
export function checkChoice(
  param: string,
  name: string | null,
  offered: readonly FunctionTool[] | null,
): void {
  if (name === null || offered?.some((one) => one.function.name === name)) return;
  throw badField(param, `there is no tool ${JSON.stringify(name)} among tools`);
}

/**
 * Nothing but calls of these tools, or of the one with this name. Several, where the family writes them one after the other and
 * `parallel` allows it.
 */
export function forcedCalls(
  family: ToolFamily,
  tools: readonly FunctionTool[],
  name: string | null,
  parallel: boolean,
): Grammar {
  const chosen = tools.filter(({ function: f }) => name === null || f.name === name);
  const tags = chosen.map(({ function: f }) => ({
    type: 'tag',
    ...family.frame(f.name),
    content: { type: 'json_schema', json_schema: f.parameters ?? { type: 'object', properties: {} } },
  }));
  const separator = name === null && parallel ? family.separator : null;
  const format = {
    type: 'tags_with_separator',
    tags,
    // xgrammar wants one, also where it never comes.
    separator: separator ?? ' ',
    at_least_one: true,
    stop_after_first: separator === null,
  };
  return { kind: 'structural-tag', tag: JSON.stringify({ type: 'structural_tag', format }) };
}
