// What a response must be, as grammars: JSON of a schema, calls of tools that were asked for, or either.
import { printable } from '../../base/printable';
import type { Grammar } from '../../rollout/request';
import { ApiError, badField } from '../call/api_error';
import type { ServedModel } from '../call/served_model';
import { type UnheldKeyword, unheldInParameters, unheldKeyword } from '../grammar/unheld_keyword';
import { callsOrText } from '../tools/calls_or_text';
import {
  type CallReading,
  type Channels,
  callReading,
  type FunctionTool,
  responseReading,
  type ToolFamily,
} from '../tools/families';
import { UnheldParameters } from '../tools/tag_arguments';

type ResponseFormat =
  | { type: 'text' }
  | { type: 'json_object' }
  | { type: 'json_schema'; json_schema: { schema: Record<string, unknown>; strict?: boolean | null } };

/** What a response is held to, and whose calls are read in it. */
export interface ResponseForm {
  grammar: Grammar | null;
  tools: CallReading | null;
}

/** Whether the schema of the tool with this index is to be held to the letter. */
export type StrictTools = (index: number) => boolean;

/** What a client calls the schemas of its request. */
export interface SchemaFields {
  answer: string;
  /** Of the tool with this index. */
  parameters(index: number): string;
}

/**
 * Of schemas that are `strict` what the grammar would not hold a response to is refused. Those of others are held to as far as a grammar can.
 * @throws ApiError 400 naming the schema and its keyword
 */
export function checkSchemas(
  model: Pick<ServedModel, 'grammars' | 'family'>,
  fields: SchemaFields,
  offered: readonly FunctionTool[] | null,
  { forced, name }: { forced: boolean; name: string | null },
  format: ResponseFormat | null | undefined,
  strict: StrictTools,
): void {
  const schema = jsonSchema(format);
  // Calls that may come, beside any text, are held to nothing.
  if (offered !== null && (forced || schema !== null))
    checkParameters(model, offered, name, (index) => fields.parameters(index), strict);
  const exact = format?.type === 'json_schema' && format.json_schema.strict === true;
  if (schema !== null && exact && !forced && hasOwnGrammars(model))
    refuse(fields.answer, unheldKeyword(schema));
}

/** The same for calls of these tools, or of the one with this name. */
export function checkParameters(
  model: Pick<ServedModel, 'grammars' | 'family'>,
  tools: readonly FunctionTool[],
  name: string | null,
  field: SchemaFields['parameters'],
  strict: StrictTools,
): void {
  if (!hasOwnGrammars(model)) return;
  for (const [i, { function: f }] of tools.entries())
    if (strict(i) && f.parameters && (name === null || f.name === name))
      refuse(field(i), unheldFor(model.family, f.parameters));
}

const unheldFor = (family: ToolFamily | null, parameters: Record<string, unknown>): UnheldKeyword | null =>
  family?.iterates ? unheldInParameters(parameters, family.values === 'bare') : unheldKeyword(parameters);

/** Engines with grammars of theirs decide by themselves. */
const hasOwnGrammars = ({ grammars }: Pick<ServedModel, 'grammars'>): boolean =>
  grammars !== null && grammars !== 'engine';

function refuse(field: string, unheld: UnheldKeyword | null): void {
  if (unheld === null) return;
  const reason = printable(`${unheld.pointer}: ${unheld.reason}`, { max: 500 });
  throw new ApiError(400, `${field}: this schema cannot be used: ${reason}`, field, 'invalid_schema');
}

/** `offered`: with calls that may come, or must (`forced`); null: none may, and nobody needs a family. */
export function responseForm(
  family: ToolFamily | null,
  offered: readonly FunctionTool[] | null,
  choice: { forced: boolean; name: string | null; parallel: boolean },
  format: ResponseFormat | null | undefined,
): ResponseForm {
  const schema = jsonSchema(format);
  const thinking = thinkingOf(family);
  const answer = schema && thinking && afterThought(thinking, [answerIn(thinking, schema)]);
  if (offered === null || family === null) {
    const plain: Grammar | null = schema && { kind: 'json-schema', schema: JSON.stringify(schema) };
    // Within the JSON there are no thoughts.
    const tools = schema && family?.thoughts ? callsOrText(family, []) : responseReading(family, null);
    return { grammar: answer ? structuralTag(answer) : plain, tools };
  }
  const { forced, name, parallel } = choice;
  const read = callReading(family, offered);
  if (forced) return { grammar: forcedCalls(family, offered, name, parallel), tools: read };
  if (schema === null) return { grammar: null, tools: read };
  if (thinking) {
    const elements = [callsOf(family, offered, parallel), answerIn(thinking, schema)];
    return {
      grammar: structuralTag(afterThought(thinking, elements)),
      tools: family.channels ? read : callsOrText(family, offered),
    };
  }
  // xgrammar's "or" has no place for a plain schema beside tags with separators.
  const json = { type: 'tag', begin: '', content: { type: 'json_schema', json_schema: schema }, end: '' };
  const elements = [callsOf(family, offered, parallel), separated([json], null)];
  return { grammar: structuralTag({ type: 'or', elements }), tools: callsOrText(family, offered) };
}

/** What comes before an answer, and around a thought before that; null: the family has neither. */
type Thinking = Pick<Channels, 'answer' | 'thought'>;

function thinkingOf(family: ToolFamily | null): Thinking | null {
  const { channels, thoughts } = family ?? {};
  if (channels !== undefined || thoughts === undefined) return channels ?? null;
  return { answer: '', thought: { begin: thoughts.open + thoughts.label, end: thoughts.close } };
}

/** One of `elements`, perhaps after a thought. */
const afterThought = ({ thought }: Thinking, elements: object[]): object => {
  const tag = { type: 'tag', ...thought, content: { type: 'any_text' } };
  const either = elements.length === 1 ? (elements[0] as object) : { type: 'or', elements };
  return { type: 'or', elements: [{ type: 'sequence', elements: [tag, either] }, either] };
};

const answerIn = ({ answer }: Thinking, schema: Record<string, unknown>): object => {
  const content = { type: 'json_schema', json_schema: schema };
  return separated([{ type: 'tag', begin: answer, content, end: '' }], null);
};

function jsonSchema(format: ResponseFormat | null | undefined): Record<string, unknown> | null {
  if (format === null || format === undefined || format.type === 'text') return null;
  return format.type === 'json_object' ? { type: 'object' } : format.json_schema.schema;
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
  return structuralTag(callsOf(family, chosen, name === null && parallel));
}

function callsOf(family: ToolFamily, tools: readonly FunctionTool[], parallel: boolean): object {
  const tags = tools.map(({ function: f }) => ({
    type: 'tag',
    ...family.frame(f.name),
    content: contentOf(family, f),
  }));
  if (!parallel || family.separator !== '') return separated(tags, parallel ? family.separator : null);
  // xgrammar has no place for a separator that is empty: what each call begins with stands there.
  const [opening = ''] = family.tags;
  const behind = tags.map((tag) => ({ ...tag, begin: tag.begin.slice(opening.length) }));
  return {
    type: 'sequence',
    elements: [{ type: 'const_string', value: opening }, separated(behind, opening)],
  };
}

/** @throws ApiError 400 where the family writes them in a form that no grammar holds them to */
function contentOf(family: ToolFamily, tool: FunctionTool['function']): object {
  try {
    return family.content(tool);
  } catch (error) {
    if (!(error instanceof UnheldParameters)) throw error;
    throw badField(
      'tools',
      `calls in the form of ${family.name} cannot be held to the ${error.message}; tool_choice auto, without a response_format, needs no grammar`,
    );
  }
}

/** One of the tags, or, with a separator, one or more. */
const separated = (tags: object[], separator: string | null): object => ({
  type: 'tags_with_separator',
  tags,
  // xgrammar wants one, also where it never comes.
  separator: separator ?? ' ',
  at_least_one: true,
  stop_after_first: separator === null,
});

const structuralTag = (format: object): Grammar => ({
  kind: 'structural-tag',
  tag: JSON.stringify({ type: 'structural_tag', format }),
});
