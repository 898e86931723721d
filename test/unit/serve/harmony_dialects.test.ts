// Responses of gpt-oss in what clients are given.
import { answerMessages } from '../../../ts/serve/anthropic/messages';
import { parseMessages } from '../../../ts/serve/anthropic/messages_request';
import type { Dialect } from '../../../ts/serve/call/answer';
import { answerResponses } from '../../../ts/serve/openai/responses';
import { parseResponses } from '../../../ts/serve/openai/responses_request';
import { toolFamily } from '../../../ts/serve/tools/families';
import { FINAL, TOOLS } from './harmony_calls';
import { events, type Json, post, type Served, served } from './served';

describe('chat completions', () => {
  const THINK = '<|channel|>analysis<|message|>I think: 4.<|end|><|start|>assistant';
  const CALL = '<|channel|>commentary to=functions.time <|constrain|>json<|message|>{"x": 1}<|call|>';
  let server: Served;
  beforeAll(async () => {
    server = await served((prompt) => THINK + (prompt.includes('call') ? CALL : `${FINAL}Four.<|return|>`), {
      family: 'gpt-oss',
    });
  });
  afterAll(() => server.close());
  const ask = async (body: object) => {
    const all = { model: 'tiny', messages: [{ role: 'user', content: 'sum' }], ...body };
    const { status, text } = await post(server.url, '/v1/chat/completions', all);
    expect(status).toBe(200);
    return text;
  };
  const call = { messages: [{ role: 'user', content: 'call' }], tools: TOOLS };

  test.each([
    ['without tools', {}],
    ['with tools', { tools: TOOLS }],
    ['none of which may be called', { tools: TOOLS, tool_choice: 'none' }],
  ])('thoughts beside the answer, %s', async (_, body) => {
    const [choice] = JSON.parse(await ask(body)).choices;
    expect(choice.message).toEqual({
      role: 'assistant',
      content: 'Four.',
      refusal: null,
      reasoning_content: 'I think: 4.',
    });
    expect(choice.finish_reason).toBe('stop');
    const deltas = events(await ask({ ...body, stream: true })).map(({ choices: [one] }: Json) => one.delta);
    const joined = (key: string): string => deltas.map((delta: Json) => delta[key] ?? '').join('');
    expect([joined('reasoning_content'), joined('content')]).toEqual(['I think: 4.', 'Four.']);
  });

  test('a call', async () => {
    const [choice] = JSON.parse(await ask(call)).choices;
    expect(choice.message).toMatchObject({
      content: null,
      reasoning_content: 'I think: 4.',
      tool_calls: [{ type: 'function', function: { name: 'time', arguments: '{"x": 1}' } }],
    });
    expect(choice.finish_reason).toBe('tool_calls');
    const streamed = events(await ask({ ...call, stream: true })).map(({ choices: [one] }: Json) => one);
    const pieces = streamed.flatMap(({ delta }: Json) => delta.tool_calls ?? []);
    expect(pieces[0].function.name).toBe('time');
    expect(pieces.length).toBeGreaterThan(2);
    expect(pieces.map((piece: Json) => piece.function.arguments).join('')).toBe('{"x": 1}');
    expect(streamed.at(-1).finish_reason).toBe('tool_calls');
  });
});

describe('other dialects', () => {
  const THINK = '<|channel|>analysis<|message|>I think.<|end|><|start|>assistant';
  const CALL = '<|channel|>commentary to=functions.time <|constrain|>json<|message|>{"x": 1}<|call|>';
  const { signal } = new AbortController();
  let server: Served;
  beforeAll(async () => {
    server = await served(
      () => `${THINK}<|channel|>commentary<|message|>Look.<|end|><|start|>assistant${CALL}`,
      {
        family: 'gpt-oss',
      },
    );
  });
  afterAll(() => server.close());
  const outcome = async (dialect: Dialect, body: object): Promise<{ body: Json; streamed: Json[] }> => {
    const whole = await dialect(server.model, body, signal);
    const stream = await dialect(server.model, { ...body, stream: true }, signal);
    if (!('body' in whole) || !('events' in stream)) throw new Error('not what was asked for');
    const streamed: Json[] = [];
    for await (const { data } of stream.events) streamed.push(JSON.parse(data));
    return { body: whole.body, streamed };
  };

  test('/v1/messages: blocks of thoughts, which come back', async () => {
    const tools = TOOLS.map(({ function: { name, parameters } }) => ({ name, input_schema: parameters }));
    const asked = { model: 'tiny', max_tokens: 500, messages: [{ role: 'user', content: 'when?' }], tools };
    const { body, streamed } = await outcome(answerMessages, asked);
    expect(body.content).toEqual([
      { type: 'thinking', thinking: 'I think.', signature: '' },
      { type: 'text', text: 'Look.' },
      { type: 'tool_use', id: expect.any(String), name: 'time', input: { x: 1 } },
    ]);
    const thought = streamed.flatMap(({ delta }) =>
      delta?.type === 'thinking_delta' ? [delta.thinking] : [],
    );
    expect([thought.join(''), thought.length > 1]).toEqual(['I think.', true]);
    const starts = streamed.filter(({ type }) => type === 'content_block_start');
    expect(starts.map(({ index, content_block }) => [index, content_block.type])).toEqual([
      [0, 'thinking'],
      [1, 'text'],
      [2, 'tool_use'],
    ]);
    const back = { ...asked, messages: [...asked.messages, { role: 'assistant', content: body.content }] };
    expect(parseMessages(server.model, back).call.conversation.messages[1]).toMatchObject({
      content: 'Look.',
      reasoning_content: 'I think.',
      tool_calls: [{ function: { name: 'time' } }],
    });
    const gemma = { ...server.model, family: toolFamily('gemma4') };
    expect(parseMessages(gemma, back).call.conversation.messages[1]).toHaveProperty('reasoning_content');
    const other = { ...server.model, family: toolFamily('hermes') };
    expect(parseMessages(other, back).call.conversation.messages[1]).not.toHaveProperty('reasoning_content');
  });

  test('/v1/responses: items of thoughts, which come back', async () => {
    const tools = TOOLS.map(({ function: { name, parameters } }) => ({ type: 'function', name, parameters }));
    const asked = { model: 'tiny', input: [{ role: 'user', content: 'when?' }], tools };
    const { body, streamed } = await outcome(answerResponses, asked);
    expect(body.output).toMatchObject([
      { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'I think.' }] },
      { type: 'message', content: [{ type: 'output_text', text: 'Look.' }] },
      { type: 'function_call', name: 'time', arguments: '{"x": 1}' },
    ]);
    expect(body.output[0].id).toMatch(/^rs_/);
    const thought = streamed.flatMap(({ type, delta }) =>
      type === 'response.reasoning_text.delta' ? [delta] : [],
    );
    expect([thought.join(''), thought.length > 1]).toEqual(['I think.', true]);
    const back = { ...asked, input: [...asked.input, ...body.output] };
    const { messages } = parseResponses(server.model, back).call.conversation;
    expect(messages).toHaveLength(2);
    expect(messages[1]).toMatchObject({
      content: 'Look.',
      reasoning_content: 'I think.',
      tool_calls: [{ function: { name: 'time' } }],
    });
    const gemma = { ...server.model, family: toolFamily('gemma4') };
    expect(parseResponses(gemma, back).call.conversation.messages[1]).toHaveProperty('reasoning_content');
    const other = { ...server.model, family: toolFamily('hermes') };
    expect(parseResponses(other, back).call.conversation.messages[1]).not.toHaveProperty('reasoning_content');
  });
});
