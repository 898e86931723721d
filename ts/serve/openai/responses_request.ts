// The body of a response of the OpenAI API: its items as a conversation.
import { z } from 'zod';
import type { ChatMessage } from '../../data/chat_template';
import { ApiError, badField } from '../call/api_error';
import type { ChatCall } from '../call/chat_call';
import { joinedOpening, templateCalls } from '../call/conversation';
import type { KeptMessages, KeptResponses } from '../call/kept_responses';
import { MessageParts } from '../call/message_parts';
import type { ServedModel } from '../call/served_model';
import { tellsThoughts } from '../tools/families';
import { byType } from './by_type';
import { checkName } from './chat_request';
import { anyObject, parseBody, samplingFields, samplingOf, streamFields } from './fields';
import { checkChoice, checkSchemas, responseForm, type SchemaFields } from './formats';
import { RESPONSE_PARTS } from './image_parts';
import { list } from './lists';
import { nameWithin, type OfferedTools, offeredTools, responseTools } from './response_tools';

/** Parts are read one by one, up to the first that is wrong. */
const content = z.union([z.string(), z.custom<readonly unknown[]>(Array.isArray)], {
  error: 'expected a text, or a list of parts',
});
const message = z.looseObject({
  type: z.literal('message').optional(),
  role: z.enum(['system', 'developer', 'user', 'assistant']),
  content,
});
const call = z.looseObject({
  type: z.literal('function_call'),
  call_id: z.string(),
  name: z.string(),
  namespace: z.string().nullish(),
  arguments: z.string(),
});
const customCall = z.looseObject({
  type: z.literal('custom_tool_call'),
  call_id: z.string(),
  name: z.string(),
  namespace: z.string().nullish(),
  input: z.string(),
});
const callOutput = z.looseObject({
  type: z.enum(['function_call_output', 'custom_tool_call_output']),
  call_id: z.string(),
  output: content,
});
/** What the model thought is part of what it reads again only where its family has a place for it. */
const reasoning = z.looseObject({
  type: z.literal('reasoning'),
  content: list(z.looseObject({ text: z.string().optional() })).nullish(),
});
type Item =
  | z.infer<typeof message>
  | z.infer<typeof call>
  | z.infer<typeof customCall>
  | z.infer<typeof callOutput>
  | z.infer<typeof reasoning>;
const ITEMS: ReadonlyMap<string | undefined, z.ZodType<Item>> = new Map<string, z.ZodType<Item>>([
  ['message', message],
  ['function_call', call],
  ['custom_tool_call', customCall],
  ['function_call_output', callOutput],
  ['custom_tool_call_output', callOutput],
  ['reasoning', reasoning],
]);
const item = byType<Item>(
  (type = 'message') => ITEMS.get(type) ?? null,
  (type) => `expected one of ${[...ITEMS.keys()].join(', ')}, got ${JSON.stringify(type).slice(0, 100)}`,
);

/** Fields that are not named here are the business of OpenAI's own servers. */
const schema = z.looseObject({
  model: streamFields.model,
  stream: streamFields.stream,
  temperature: samplingFields.temperature,
  top_p: samplingFields.top_p,
  input: z.union([z.string(), list(item)]),
  instructions: z.string().nullish(),
  max_output_tokens: z.int().min(1).nullish(),
  previous_response_id: z.string().nullish(),
  store: z.boolean().nullish(),
  conversation: z.null({ error: 'this server keeps no conversations: send the whole input' }).optional(),
  tools: responseTools.nullish(),
  tool_choice: z
    .union([
      z.enum(['none', 'auto', 'required']),
      z.looseObject({
        type: z.enum(['function', 'custom']),
        name: z.string(),
        namespace: z.string().nullish(),
      }),
    ])
    .nullish(),
  parallel_tool_calls: z.boolean().nullish(),
  text: z
    .looseObject({
      format: z
        .union([
          z.looseObject({ type: z.enum(['text', 'json_object']) }),
          z.looseObject({ type: z.literal('json_schema'), schema: anyObject, strict: z.boolean().nullish() }),
        ])
        .nullish(),
    })
    .nullish(),
});

export interface ResponsesForm {
  stream: boolean;
  /** What a request that goes on from this response goes on from, without the response; null: nobody may. */
  kept: KeptMessages | null;
  /** What calls are to the client, by the names that the model knows. */
  called: OfferedTools['called'];
  /** What a response repeats of its request. */
  echo: Record<string, unknown>;
}

/** `kept`: of earlier responses; null: there are none. @throws ApiError 400 naming the field, 404 for another model */
export function parseResponses(
  model: ServedModel,
  body: unknown,
  kept: KeptResponses | null = null,
): { call: ChatCall; form: ResponsesForm } {
  const r = parseBody(schema, body, []);
  checkName(model, r.model);
  const read = offeredTools(r.tools ?? []);
  const tools = read.functions.length > 0 ? read.functions : null;
  const choice = r.tool_choice ?? 'auto';
  const offered = choice === 'none' ? null : tools;
  if (offered !== null && model.family === null)
    throw badField('tools', `the chat template of ${model.name} knows no tools`);
  const name = typeof choice === 'object' ? nameWithin(choice.namespace, choice.name) : null;
  checkChoice('tool_choice.name', name, offered);
  const forced = offered !== null && (choice === 'required' || name !== null);
  const format = r.text?.format ?? null;
  const choices = { forced, name, parallel: r.parallel_tool_calls !== false };
  const asked =
    format?.type === 'json_schema'
      ? {
          type: format.type,
          json_schema: { schema: format.schema as Record<string, unknown>, strict: format.strict === true },
        }
      : format;
  const schemas: SchemaFields = {
    answer: 'text.format.schema',
    parameters: (index) => `${read.fields[index]}.parameters`,
  };
  checkSchemas(model, schemas, offered, choices, asked, (index) => read.strict[index] === true);
  const { grammar, tools: reading } = responseForm(model.family, offered, choices, asked);
  if (grammar !== null && model.grammars === null)
    throw badField(
      forced ? 'tool_choice' : 'text.format',
      'the engine behind this server cannot hold responses to a grammar',
    );
  const parts = new MessageParts(RESPONSE_PARTS, model.images !== null);
  const previous = previousMessages(r.previous_response_id ?? null, kept);
  const messages = [...previous.messages, ...messagesOf(r.input, tellsThoughts(model.family), parts)];
  const images = [...previous.images, ...parts.images];
  const opening: ChatMessage[] = r.instructions ? [{ role: 'system', content: r.instructions }] : [];
  return {
    call: {
      fields: {
        prompt: 'input',
        maxTokens: 'max_output_tokens',
        grammar: forced ? 'tools' : 'text.format',
      },
      conversation: {
        messages: joinedOpening([...opening, ...messages]),
        tools,
        variables: {},
        opened: true,
      },
      images,
      maxTokens: null,
      atMost: r.max_output_tokens ?? null,
      sampling: samplingOf(
        { temperature: r.temperature, top_p: r.top_p } as Parameters<typeof samplingOf>[0],
        model,
      ),
      n: 1,
      seed: undefined,
      stop: [],
      grammar,
      tools: reading,
      oneCall: r.parallel_tool_calls === false,
      specialTokens: false,
      priority: undefined,
      cacheSalt: undefined,
    },
    form: {
      stream: r.stream ?? false,
      kept: r.store === false ? null : { messages, images },
      called: read.called,
      echo: {
        instructions: r.instructions ?? null,
        max_output_tokens: r.max_output_tokens ?? null,
        parallel_tool_calls: r.parallel_tool_calls ?? true,
        previous_response_id: r.previous_response_id ?? null,
        temperature: r.temperature ?? 1,
        text: { format: format ?? { type: 'text' } },
        tool_choice: choice,
        tools: (body as { tools?: unknown }).tools ?? [],
        top_p: r.top_p ?? 1,
        truncation: 'disabled',
        metadata: {},
      },
    },
  };
}

function previousMessages(id: string | null, kept: KeptResponses | null): KeptMessages {
  if (id === null) return { messages: [], images: [] };
  const param = 'previous_response_id';
  if (kept === null) throw badField(param, 'this server keeps no responses: send the whole input');
  const found = kept.get(id);
  if (found !== undefined) return found;
  throw new ApiError(
    400,
    `${param}: this session has made no response ${JSON.stringify(id.slice(0, 200))}, or it was not to be stored (store: false)`,
    param,
    'previous_response_not_found',
  );
}

/** Words of the assistant and the calls that follow them are one message. */
function messagesOf(input: string | Item[], thoughts: boolean, read: MessageParts): ChatMessage[] {
  if (typeof input === 'string') return [{ role: 'user', content: input }];
  const messages: ChatMessage[] = [];
  for (const [i, one] of input.entries()) {
    if (one.type === 'reasoning') {
      const thought = one.content?.map(({ text }) => text ?? '').join('') ?? '';
      if (thoughts && thought !== '')
        messages.push({ role: 'assistant', content: '', reasoning_content: thought });
    } else if (one.type === 'function_call_output' || one.type === 'custom_tool_call_output') {
      const told = read.content(one.output, `input.${i}.output`, true);
      messages.push({ role: 'tool', tool_call_id: one.call_id, content: told });
    } else if (one.type === 'function_call' || one.type === 'custom_tool_call') {
      const name = nameWithin(one.namespace, one.name);
      const source = one.type === 'function_call' ? one.arguments : JSON.stringify({ input: one.input });
      const [made] = templateCalls([{ id: one.call_id, function: { name, arguments: source } }]);
      const last = messages.at(-1);
      if (last?.role === 'assistant')
        last['tool_calls'] = [...((last['tool_calls'] as unknown[]) ?? []), made];
      else messages.push({ role: 'assistant', content: '', tool_calls: [made] });
    } else {
      const { role, content: given } = one as z.infer<typeof message>;
      const text = read.content(given, `input.${i}.content`, role === 'user');
      const last = messages.at(-1);
      // The words that follow a thought.
      if (
        role === 'assistant' &&
        last?.['reasoning_content'] !== undefined &&
        last.content === '' &&
        !last['tool_calls']
      )
        last.content = text;
      else messages.push({ role: role === 'developer' ? 'system' : role, content: text });
    }
  }
  return messages;
}
