import { answerMessages, countTokens } from '../../../ts/serve/anthropic/messages';
import type { Dialect } from '../../../ts/serve/call/answer';
import { answerResponses } from '../../../ts/serve/openai/responses';
import { type Json, type Served, servers } from './served';

// The dialects beside completions: responses and messages.

const serve = servers();

/** The body of an answer, or the data of its events. */
async function answered(s: Served, dialect: Dialect, body: object): Promise<Json> {
  const answer = await dialect(s.model, body, new AbortController().signal);
  if ('body' in answer) return answer.body;
  const all: Json[] = [];
  for await (const { data } of answer.events) all.push(JSON.parse(data));
  return all;
}

const call = (x: number): string => `<tool_call>\n{"name": "add", "arguments": {"x": ${x}}}\n</tool_call>`;
const message = { max_tokens: 200, messages: [{ role: 'user', content: 'hello' }] };

test('of several calls only the first, where one alone was asked for', async () => {
  const s = await serve(() => `${call(1)}\n${call(2)}`, { family: 'hermes' });
  const uses = async (choice: object): Promise<unknown[]> => {
    const tools = [{ name: 'add', input_schema: { type: 'object' } }];
    const { content, stop_reason } = await answered(s, answerMessages, {
      ...message,
      tools,
      tool_choice: { type: 'auto', ...choice },
    });
    return [stop_reason, ...content.map(({ input }: Json) => input.x)];
  };
  expect(await uses({})).toEqual(['tool_use', 1, 2]);
  expect(await uses({ disable_parallel_tool_use: true })).toEqual(['tool_use', 1]);
  const outputs = async (more: object): Promise<unknown[]> => {
    const tools = [{ type: 'function', name: 'add', parameters: { type: 'object' } }];
    const { output } = await answered(s, answerResponses, { input: 'hello', tools, ...more });
    return output.map((item: Json) => item.arguments);
  };
  expect(await outputs({})).toEqual(['{"x": 1}', '{"x": 2}']);
  expect(await outputs({ parallel_tool_calls: false })).toEqual(['{"x": 1}']);
});

test('arguments that are nested without end are passed on as a text', async () => {
  const deep = `{"x": ${'['.repeat(9000)}${']'.repeat(9000)}}`;
  const said = `<tool_call>\n{"name": "add", "arguments": ${deep}}\n</tool_call>`;
  const s = await serve(() => said, { family: 'hermes', script: { maxTokens: 65_536 } });
  const tools = [{ name: 'add', input_schema: { type: 'object' } }];
  const { content } = await answered(s, answerMessages, { ...message, tools, max_tokens: 40_000 });
  expect(content).toMatchObject([{ type: 'tool_use', name: 'add', input: { arguments: deep } }]);
});

test('values that are written without their type have that of the tools of the request', async () => {
  const said = '<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>';
  const s = await serve(() => said, { family: 'glm45' });
  for (const [type, x] of [
    ['integer', 1],
    ['string', '1'],
  ] as const) {
    const parameters = { type: 'object', properties: { x: { type } } };
    const used = await answered(s, answerMessages, {
      ...message,
      tools: [{ name: 'add', input_schema: parameters }],
    });
    expect(used.content).toEqual([expect.objectContaining({ type: 'tool_use', name: 'add', input: { x } })]);
    const { output } = await answered(s, answerResponses, {
      input: 'hello',
      tools: [{ type: 'function', name: 'add', parameters }],
    });
    expect(output.map((item: Json) => JSON.parse(item.arguments))).toEqual([{ x }]);
  }
});

test('a response may call tools although it is to be JSON', async () => {
  const answer = JSON.stringify({ said: call(1) });
  const said = [call(1), answer, answer];
  const s = await serve((_, index) => said[index] as string, { family: 'hermes', grammars: 'engine' });
  const tools = [{ type: 'function', name: 'add', parameters: { type: 'object' } }];
  const schema = { type: 'object', properties: { said: { type: 'string' } } };
  const body = { input: 'hello', tools, text: { format: { type: 'json_schema', name: 'x', schema } } };
  const output = async (more: object): Promise<Json[]> =>
    (await answered(s, answerResponses, { ...body, ...more })).output;
  expect(await output({})).toMatchObject([{ type: 'function_call', name: 'add', arguments: '{"x": 1}' }]);
  expect(await output({})).toMatchObject([{ type: 'message', content: [{ text: answer }] }]);
  expect(await output({ tool_choice: 'none' })).toMatchObject([{ content: [{ text: answer }] }]);
  expect(s.engine.requests.map(({ grammar }) => grammar?.kind)).toEqual([
    'structural-tag',
    'structural-tag',
    'json-schema',
  ]);
});

test.each([false, true])('a stop sequence that ends a message is named (stream: %s)', async (stream) => {
  const s = await serve(() => 'one\n\ntwo');
  const ends = async (more: object): Promise<unknown[]> => {
    const answer = await answered(s, answerMessages, { ...message, stream, ...more });
    const { stop_reason, stop_sequence } = stream
      ? answer.find(({ type }: Json) => type === 'message_delta').delta
      : answer;
    return [stop_reason, stop_sequence];
  };
  expect(await ends({ stop_sequences: ['zzz', '\n\n'] })).toEqual(['stop_sequence', '\n\n']);
  expect(await ends({ stop_sequences: ['zzz'] })).toEqual(['end_turn', null]);
  expect(await ends({ stop_sequences: ['two'], max_tokens: 4 })).toEqual(['max_tokens', null]);
});

test('what was cached of a prompt is not counted among its other tokens', async () => {
  const s = await serve(() => 'ok');
  const whole = await answered(s, answerMessages, message);
  const prompt = s.prompt(0).length;
  const usage = (cached: number): object => ({
    input_tokens: prompt - cached,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cached,
  });
  expect(whole.usage).toEqual({ ...usage(4), output_tokens: 3 });
  const all = await answered(s, answerMessages, { ...message, stream: true });
  // Before it has been read nobody knows what of it is cached.
  expect(all[0].message.usage).toEqual({ ...usage(0), output_tokens: 0 });
  const { usage: last } = all.find(({ type }: Json) => type === 'message_delta');
  expect(last).toEqual({ ...usage(4), output_tokens: 3 });
});

test('of a response that its length cuts, the item that was being written is incomplete', async () => {
  const s = await serve(() => `${call(1)}\nthe rest of it`, { family: 'hermes' });
  const tools = [{ type: 'function', name: 'add', parameters: { type: 'object' } }];
  const statuses = async (max_output_tokens: number): Promise<unknown> => {
    const body = { input: 'hello', tools, max_output_tokens };
    const { status, output } = await answered(s, answerResponses, body);
    const events: Json[] = await answered(s, answerResponses, { ...body, stream: true });
    const done = events.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item);
    expect(done.map((item) => item.status)).toEqual(output.map((item: Json) => item.status));
    expect(events.at(-1)).toMatchObject({ type: `response.${status}`, response: { status } });
    return [status, ...output.map((item: Json) => [item.type, item.status])];
  };
  const called = ['function_call', 'completed'];
  expect(await statuses(call(1).length + 8)).toEqual(['incomplete', called, ['message', 'incomplete']]);
  expect(await statuses(100)).toEqual(['completed', called, ['message', 'completed']]);
});

test('the tokens of a prompt are counted as they would be answered', async () => {
  const s = await serve(() => 'ok', { family: 'hermes' });
  const { max_tokens: _, ...body } = {
    ...message,
    system: 'be brief',
    tools: [{ name: 'add', input_schema: { type: 'object' } }],
  };
  const counted = await answered(s, countTokens, body);
  expect(s.engine.requests).toHaveLength(0);
  await answered(s, answerMessages, { ...body, max_tokens: 5 });
  expect(counted).toEqual({ input_tokens: s.engine.requests[0]?.promptIds.length });
  await expect(answered(s, countTokens, { system: 'x' })).rejects.toMatchObject({
    status: 400,
    message: expect.stringContaining('messages'),
  });
});
