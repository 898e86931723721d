// The body of a chat completion: its schema, and what it asks of a model.
import { z } from 'zod';
import { holdsAtMost } from '../../base/json_shape';
import type { ChatMessage } from '../../data/chat_template';
import { ApiError, badField } from '../call/api_error';
import type { ChatCall } from '../call/chat_call';
import { templateCalls } from '../call/conversation';
import { defined } from '../call/defined';
import { MessageParts } from '../call/message_parts';
import type { ServedModel } from '../call/served_model';
import type { FunctionTool } from '../tools/families';
import {
  anyObject,
  harmlessFields,
  optional,
  parseBody,
  samplingFields,
  samplingOf,
  streamFields,
} from './fields';
import { checkChoice, checkSchemas, responseForm, type SchemaFields } from './formats';
import { CHAT_PARTS } from './image_parts';
import { list } from './lists';

const MOST_TOP = 20;
const MOST_TOOLS = 512;
/** A template takes 25 µs for each. */
const MOST_MESSAGES = 16_384;
/** Of the template, each of which takes it a while. */
const MOST_VARIABLES = 256;
const MOST_VALUES = 10_000;

/** Parts are read one by one, up to the first that is wrong. */
const content = z.union([z.string(), z.custom<readonly unknown[]>(Array.isArray)], {
  error: 'expected a text, or a list of parts',
});
const toolCall = z.object({
  id: z.string(),
  type: z.literal('function').default('function'),
  function: z.object({ name: z.string(), arguments: z.string() }),
});
const message = z.discriminatedUnion('role', [
  z.looseObject({ role: z.literal('system'), content }),
  z.looseObject({ role: z.literal('developer'), content }),
  z.looseObject({ role: z.literal('user'), content }),
  z.looseObject({
    role: z.literal('assistant'),
    content: content.nullish(),
    tool_calls: list(toolCall).nullish(),
  }),
  z.looseObject({ role: z.literal('tool'), content, tool_call_id: z.string().nullish() }),
]);

const tool = z.object({
  type: z.literal('function'),
  function: z.object({
    name: z.string().regex(/^[\w.-]{1,256}$/, 'expected letters, digits, _, . and -'),
    description: optional(z.string()),
    parameters: optional(anyObject),
    strict: z.boolean().nullish(),
  }),
});

const responseFormat = z.discriminatedUnion('type', [
  z.object({ type: z.literal('text') }),
  z.object({ type: z.literal('json_object') }),
  z.object({
    type: z.literal('json_schema'),
    json_schema: z.object({
      name: z.string().nullish(),
      description: z.string().nullish(),
      schema: anyObject,
      strict: z.boolean().nullish(),
    }),
  }),
]);

const fields = {
  ...harmlessFields,
  ...samplingFields,
  ...streamFields,
  messages: list(message, { min: 1, max: MOST_MESSAGES }),
  max_tokens: z.int().min(1).nullish(),
  max_completion_tokens: z.int().min(1).nullish(),
  logprobs: z.boolean().nullish(),
  top_logprobs: z.int().min(0).max(MOST_TOP).nullish(),
  tools: list(tool, { max: MOST_TOOLS }).nullish(),
  tool_choice: z
    .union([
      z.enum(['none', 'auto', 'required']),
      z.object({ type: z.literal('function'), function: z.object({ name: z.string() }) }),
    ])
    .nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  response_format: responseFormat.nullish(),
  reasoning_effort: z.string().nullish(),
  chat_template_kwargs: anyObject
    .refine((given) => Object.keys(given).length <= MOST_VARIABLES, {
      error: `expected at most ${MOST_VARIABLES} variables of the template`,
    })
    .refine((given) => holdsAtMost(given, MOST_VALUES), {
      error: `expected variables of the template with at most ${MOST_VALUES} values in all`,
    })
    .nullish(),
  add_generation_prompt: z.boolean().nullish(),
  modalities: list(z.literal('text')).nullish(),
};
const schema = z.strictObject(fields);

const SCHEMAS: SchemaFields = {
  answer: 'response_format.json_schema.schema',
  parameters: (index) => `tools.${index}.function.parameters`,
};

/** How the answer is written. */
export interface ChatForm {
  stream: boolean;
  includeUsage: boolean;
  /** Most likely tokens per position; null: no log-probs. */
  logProbs: number | null;
  tokenIds: boolean;
}

/** @throws ApiError 400 naming the field, 404 for another model */
export function parseChat(model: ServedModel, body: unknown): { call: ChatCall; form: ChatForm } {
  const r = parseBody(schema, body, Object.keys(fields));
  checkName(model, r.model);
  const tools = (r.tools?.length ? r.tools : null) as FunctionTool[] | null;
  const choice = r.tool_choice ?? (tools === null ? 'none' : 'auto');
  const offered = choice === 'none' ? null : tools;
  if (tools === null && choice !== 'none') throw badField('tool_choice', 'there are no tools to choose from');
  if (offered !== null && model.family === null) {
    throw badField(
      'tools',
      `the chat template of ${model.name} knows no tools (troupe serve --tool-parser names a family)`,
    );
  }
  const name = typeof choice === 'object' ? choice.function.name : null;
  checkChoice('tool_choice.function.name', name, tools);
  if (!r.logprobs && r.top_logprobs) throw badField('top_logprobs', 'needs logprobs: true');
  const forced = offered !== null && (choice === 'required' || name !== null);
  const choices = { forced, name, parallel: r.parallel_tool_calls !== false };
  const strict = (index: number): boolean => r.tools?.[index]?.function.strict === true;
  checkSchemas(model, SCHEMAS, offered, choices, r.response_format, strict);
  const { grammar, tools: read } = responseForm(model.family, offered, choices, r.response_format);
  if (grammar !== null && model.grammars === null) {
    const field = forced ? 'tool_choice' : 'response_format';
    throw badField(field, 'the engine behind this server cannot hold responses to a grammar');
  }
  const logProbs = r.logprobs ? (r.top_logprobs ?? 0) : null;
  const parts = new MessageParts(CHAT_PARTS, model.images !== null);
  const call: ChatCall = {
    fields: {
      prompt: 'messages',
      maxTokens: r.max_completion_tokens == null ? 'max_tokens' : 'max_completion_tokens',
      grammar: forced ? 'tools' : 'response_format',
    },
    conversation: {
      messages: r.messages.map((message, i) => templateMessage(message, i, parts)),
      tools,
      variables: defined({ reasoning_effort: r.reasoning_effort ?? undefined, ...r.chat_template_kwargs }),
      opened: r.add_generation_prompt ?? true,
    },
    images: parts.images,
    maxTokens: r.max_completion_tokens ?? r.max_tokens ?? null,
    sampling: {
      ...samplingOf(r, model),
      ...(logProbs ? { topLogProbs: logProbs } : {}),
    },
    n: r.n ?? 1,
    seed: r.seed,
    stop: r.stop ?? [],
    grammar,
    tools: read,
    oneCall: r.parallel_tool_calls === false,
    specialTokens: r.skip_special_tokens === false,
    priority: r.priority,
    cacheSalt: r.cache_salt,
  };
  const form: ChatForm = {
    stream: r.stream ?? false,
    includeUsage: r.stream_options?.include_usage ?? false,
    logProbs,
    tokenIds: r.return_token_ids ?? false,
  };
  return { call, form };
}

/** @throws ApiError 404 */
export function checkName(model: ServedModel, asked: string | undefined): void {
  if (asked === undefined || asked === model.name) return;
  throw new ApiError(
    404,
    `there is no model ${JSON.stringify(asked.slice(0, 200))} here, only ${JSON.stringify(model.name)}`,
    'model',
    'model_not_found',
  );
}

function templateMessage(given: z.infer<typeof message>, i: number, parts: MessageParts): ChatMessage {
  const shown = given.role === 'user' || given.role === 'tool';
  const content = parts.content(given.content ?? '', `messages.${i}.content`, shown);
  if (given.role === 'developer') return { ...given, content, role: 'system' };
  if (given.role !== 'assistant') return { ...given, content };
  const { tool_calls: calls, ...rest } = given;
  const tools = calls?.length ? { tool_calls: templateCalls(calls) } : {};
  return { ...rest, content, ...tools };
}
