// The body of a message of the Anthropic API: its blocks as a conversation.
import { z } from 'zod';
import type { ChatMessage } from '../../data/chat_template';
import { badField } from '../call/api_error';
import type { ChatCall } from '../call/chat_call';
import { joinedOpening } from '../call/conversation';
import { defined } from '../call/defined';
import { joined, MessageParts, type Part, type PartForms, textField } from '../call/message_parts';
import { imageAt, imageOf } from '../call/sent_image';
import type { ServedModel } from '../call/served_model';
import { checkName } from '../openai/chat_request';
import { anyObject, parseBody, samplingFields, samplingOf, stopText } from '../openai/fields';
import { checkChoice, checkParameters, forcedCalls } from '../openai/formats';
import { list } from '../openai/lists';
import { type FunctionTool, responseReading, tellsThoughts } from '../tools/families';

const textBlock = z.looseObject({ type: z.literal('text'), text: z.string() });
const toolUse = z.looseObject({
  type: z.literal('tool_use'),
  id: z.string(),
  name: z.string(),
  input: anyObject,
});
const words = z.union([
  z.string(),
  list(textBlock).transform((blocks) => blocks.map(({ text }) => text).join('')),
]);
const imageBlock = z.looseObject({ type: z.literal('image') });
const toolResult = z.looseObject({
  type: z.literal('tool_result'),
  tool_use_id: z.string(),
  content: z.union([z.string(), z.custom<readonly unknown[]>(Array.isArray)]).nullish(),
});
/** What the model thought is part of what it reads again only where its family has a place for it. */
const thinking = z.looseObject({
  type: z.enum(['thinking', 'redacted_thinking']),
  thinking: z.string().optional(),
});
const block = z.union([textBlock, imageBlock, toolUse, toolResult, thinking], {
  error: 'expected a block of type text, image, tool_use, tool_result or thinking',
});
const message = z.looseObject({
  role: z.enum(['user', 'assistant', 'system']),
  content: z.union([z.string().transform((text) => [{ type: 'text' as const, text }]), list(block)]),
});
const tool = z.looseObject({
  type: z.literal('custom', { error: 'expected "custom": this server has no tools of its own' }).nullish(),
  name: z.string().regex(/^[\w.-]{1,256}$/, 'expected letters, digits, _, . and -'),
  description: z.string().nullish(),
  input_schema: anyObject,
  strict: z.boolean().nullish(),
});

/** Fields that are not named here are the business of Anthropic's own servers. */
const schema = z.looseObject({
  model: z.string().optional(),
  max_tokens: z.int().min(1),
  messages: list(message, { min: 1 }),
  system: words.nullish(),
  stream: z.boolean().nullish(),
  stop_sequences: list(stopText, { max: 64 }).nullish(),
  temperature: samplingFields.temperature,
  top_p: samplingFields.top_p,
  top_k: samplingFields.top_k,
  tools: list(tool, { max: 512 }).nullish(),
  tool_choice: z
    .looseObject({
      type: z.enum(['auto', 'any', 'tool', 'none']),
      name: z.string().optional(),
      disable_parallel_tool_use: z.boolean().optional(),
    })
    .nullish(),
});

const counted = schema.extend({ max_tokens: schema.shape.max_tokens.optional() });

/** @throws ApiError 400 naming the field, 404 for another model */
export function parseMessages(model: ServedModel, body: unknown): { call: ChatCall; stream: boolean } {
  const r = parseBody(schema, body, []);
  return { call: callOf(model, r), stream: r.stream ?? false };
}

/** A message of which only the prompt is wanted. @throws ApiError 400 naming the field, 404 for another model */
export const parseCounted = (model: ServedModel, body: unknown): ChatCall =>
  callOf(model, parseBody(counted, body, []));

function callOf(model: ServedModel, r: z.infer<typeof counted>): ChatCall {
  checkName(model, r.model);
  const tools = r.tools?.length
    ? r.tools.map(
        ({ name, description, input_schema: parameters }): FunctionTool => ({
          type: 'function',
          function: defined({ name, description: description ?? undefined, parameters }),
        }),
      )
    : null;
  const choice = r.tool_choice ?? { type: 'auto' as const };
  const offered = choice.type === 'none' ? null : tools;
  if (offered !== null && model.family === null)
    throw badField('tools', `the chat template of ${model.name} knows no tools`);
  const forced = offered !== null && (choice.type === 'any' || choice.type === 'tool');
  if (choice.type === 'tool' && choice.name === undefined)
    throw badField('tool_choice.name', 'expected the name of a tool, got none');
  const name = choice.type === 'tool' ? (choice.name as string) : null;
  checkChoice('tool_choice.name', name, offered);
  if (forced && model.grammars === null)
    throw badField('tool_choice', 'the engine behind this server cannot hold responses to a grammar');
  if (forced) {
    const strict = (index: number): boolean => r.tools?.[index]?.strict === true;
    checkParameters(model, offered, name, (index) => `tools.${index}.input_schema`, strict);
  }
  const parts = new MessageParts(MESSAGE_PARTS, model.images !== null);
  const opening: ChatMessage[] = r.system ? [{ role: 'system', content: r.system }] : [];
  return {
    fields: { prompt: 'messages', maxTokens: 'max_tokens', grammar: 'tools' },
    conversation: {
      messages: joinedOpening([
        ...opening,
        ...r.messages.flatMap((one, i) => {
          const thoughts = tellsThoughts(model.family);
          return messagesOf(one, thoughts, parts, `messages.${i}.content`);
        }),
      ]),
      tools,
      variables: {},
      opened: true,
    },
    images: parts.images,
    maxTokens: null,
    // Clients ask for as much as their own models can make.
    atMost: r.max_tokens ?? null,
    sampling: samplingOf(
      { temperature: r.temperature, top_p: r.top_p, top_k: r.top_k } as Parameters<typeof samplingOf>[0],
      model,
    ),
    n: 1,
    seed: undefined,
    stop: r.stop_sequences ?? [],
    grammar: forced
      ? forcedCalls(
          model.family as NonNullable<typeof model.family>,
          offered,
          name,
          choice.disable_parallel_tool_use !== true,
        )
      : null,
    tools: responseReading(model.family, offered),
    oneCall: choice.disable_parallel_tool_use === true,
    specialTokens: false,
    priority: undefined,
    cacheSalt: undefined,
  };
}

/** How blocks are written. */
const MESSAGE_PARTS: PartForms = {
  text: 'text',
  textOf: (part, field) => (part['type'] === 'text' ? textField(part, field) : null),
  image: 'image',
  imageOf: (part, field) => {
    const at = `${field}.source`;
    const source = part['source'] as Part | null | undefined;
    if (source?.['type'] === 'url') return imageAt(source['url'], `${at}.url`);
    const { type, media_type: kind, data } = source ?? {};
    if (type !== 'base64' || typeof kind !== 'string' || typeof data !== 'string')
      throw badField(at, 'expected {"type": "base64", "media_type": "image/png", "data": ...}');
    return imageOf(kind, data, `${at}.data`);
  },
};

/** Results of tools are messages of their own, before what the user says beside them; so are their images. */
function messagesOf(
  { role, content }: z.infer<typeof message>,
  thoughts: boolean,
  parts: MessageParts,
  field: string,
): ChatMessage[] {
  const results = content.flatMap((one, i): ChatMessage[] => {
    if (role === 'assistant' || one.type !== 'tool_result') return [];
    const { tool_use_id, content: told } = one as z.infer<typeof toolResult>;
    const shown = parts.content(told ?? '', `${field}.${i}.content`, true);
    return [{ role: 'tool', tool_call_id: tool_use_id, content: shown }];
  });
  const text = joined(
    content.flatMap((one, i) =>
      one.type === 'text' || one.type === 'image' ? [parts.part(one, `${field}.${i}`, role === 'user')] : [],
    ),
  );
  if (role !== 'assistant')
    return text === '' && results.length > 0 ? results : [...results, { role, content: text }];
  const calls = content.flatMap((one) => {
    if (one.type !== 'tool_use') return [];
    const { id, name, input } = one as z.infer<typeof toolUse>;
    return [{ id, type: 'function', function: { name, arguments: input } }];
  });
  const thought = content
    .flatMap((one) => (one.type === 'thinking' ? [one['thinking'] ?? ''] : []))
    .join('\n');
  return [
    {
      role,
      content: text,
      ...(thoughts && thought !== '' ? { reasoning_content: thought } : {}),
      ...(calls.length > 0 ? { tool_calls: calls } : {}),
    },
  ];
}
