import { templateCalls } from '../../../ts/serve/call/conversation';
import { answerChat } from '../../../ts/serve/openai/chat';
import { events, type Json, post, type Served, servers } from './served';

const chat = '/v1/chat/completions';
const hello = [{ role: 'user', content: 'hello' }];
const serve = servers();

test('a chat completion has the text, the reason of its end and the counts', async () => {
  const s = await serve(() => 'hi \u{1f44d}');
  const { status, text } = await post(s.url, chat, {
    model: 'tiny',
    messages: hello,
    temperature: 0.5,
    seed: 7,
    top_k: 3,
  });
  expect(status).toBe(200);
  expect(JSON.parse(text)).toEqual({
    id: expect.stringMatching(/^chatcmpl-/),
    object: 'chat.completion',
    created: expect.any(Number),
    model: 'tiny',
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: 'hi \u{1f44d}', refusal: null },
        logprobs: null,
        finish_reason: 'stop',
      },
    ],
    usage: {
      prompt_tokens: 22,
      completion_tokens: 8,
      total_tokens: 30,
      prompt_tokens_details: { cached_tokens: 4 },
    },
  });
  expect(s.prompt(0)).toBe('<user>hello<assistant>');
  expect(s.engine.requests[0]?.sampling).toEqual({
    temperature: 0.5,
    topK: 3,
    seed: 7n,
    maxNewTokens: 4096 - 22,
  });
});

test.each([-2, 2])('penalties go to the engine, also those at the bound %d of the API', async (penalty) => {
  const s = await serve(() => 'hi');
  const penalties = { presence_penalty: penalty, frequency_penalty: penalty };
  const { status } = await post(s.url, chat, { messages: hello, ...penalties });
  expect(status).toBe(200);
  expect(s.engine.requests[0]?.sampling).toMatchObject({
    presencePenalty: penalty,
    frequencyPenalty: penalty,
  });
  const beyond = await post(s.url, chat, { messages: hello, presence_penalty: 1.1 * penalty });
  expect([beyond.status, JSON.parse(beyond.text).error.param]).toEqual([400, 'presence_penalty']);
});

test('a stream gives the same text piece by piece, and its usage when it is asked for', async () => {
  const s = await serve(() => 'hi \u{1f44d}');
  const { text, headers } = await post(s.url, chat, {
    messages: hello,
    stream: true,
    stream_options: { include_usage: true },
  });
  expect(headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
  const all = events(text);
  const choices = all.filter((one) => one.choices.length > 0).map((one) => one.choices[0]);
  expect(choices.map(({ delta }) => delta)).toEqual([
    { role: 'assistant', content: '' },
    { content: 'h' },
    { content: 'i' },
    { content: ' ' },
    { content: '\u{1f44d}' },
    {},
  ]);
  expect(choices.map(({ finish_reason }) => finish_reason)).toEqual([null, null, null, null, null, 'stop']);
  expect(all.at(-1)).toMatchObject({ choices: [], usage: { prompt_tokens: 22, completion_tokens: 8 } });
  expect(all.every((one) => one.object === 'chat.completion.chunk' && one.id === all[0].id)).toBe(true);
});

test('several choices differ in their seeds and come together', async () => {
  const s = await serve((_, i) => 'abc'.slice(i));
  const { text } = await post(s.url, chat, { messages: hello, n: 3, seed: 5, stream: true });
  const parts: string[] = ['', '', ''];
  for (const { choices } of events(text)) parts[choices[0].index] += choices[0].delta.content ?? '';
  expect(parts).toEqual(['abc', 'bc', 'c']);
  const seeds = s.engine.requests.map(({ sampling }) => sampling.seed);
  expect([seeds[0], new Set(seeds).size]).toEqual([5n, 3]);
});

test.each([false, true])('stop texts end a response before they are seen (stream: %s)', async (stream) => {
  const s = await serve(() => 'one\n\ntwo', { script: { span: 2 } });
  const { text } = await post(s.url, chat, {
    messages: hello,
    stop: ['\n\n', 'zzz'],
    stream,
    return_token_ids: true,
  });
  const all: Json[] = stream ? events(text) : [JSON.parse(text)];
  const content = all.map(({ choices: [c] }) => (c.delta ?? c.message).content ?? '').join('');
  expect([content, all.at(-1).choices[0].finish_reason]).toEqual(['one', 'stop']);
  // The token that completes the text is the last one that counts.
  expect(all.flatMap(({ choices: [c] }) => c.token_ids ?? [])).toEqual([...Buffer.from('one\n\n')]);
  expect(all[0].prompt_token_ids).toEqual([...Buffer.from('<user>hello<assistant>')]);
});

test('the length that was asked for ends a response', async () => {
  const s = await serve(() => 'a long answer');
  const { text } = await post(s.url, chat, { messages: hello, max_completion_tokens: 6 });
  expect(JSON.parse(text).choices[0]).toMatchObject({
    message: { content: 'a long' },
    finish_reason: 'length',
  });
});

test.each([false, true])('log-probs have an entry per token (stream: %s)', async (stream) => {
  const s = await serve(() => '\u00e9!');
  const { text } = await post(s.url, chat, { messages: hello, logprobs: true, top_logprobs: 2, stream });
  const all: Json[] = stream ? events(text) : [JSON.parse(text)];
  const content = all.flatMap(({ choices: [c] }) => c.logprobs?.content ?? []);
  expect(content).toHaveLength(4);
  expect(content.map(({ bytes }: Json) => bytes).slice(0, 3)).toEqual([[0xc3], [0xa9], [0x21]]);
  expect(content[2]).toEqual({
    token: '!',
    logprob: expect.closeTo(-((0x21 % 7) + 2 / 128) / 4, 6),
    bytes: [0x21],
    top_logprobs: [expect.objectContaining({ token: '!' }), expect.objectContaining({ token: '"' })],
  });
});

const tools = [{ type: 'function', function: { name: 'add', parameters: { type: 'object' } } }];
const CALL = 'Hm.<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>';

test.each([false, true])('calls of tools are read out of the text (stream: %s)', async (stream) => {
  const s = await serve(() => CALL, { family: 'hermes' });
  const { text } = await post(s.url, chat, { messages: hello, tools, stream });
  expect(s.prompt(0)).toBe('[add]<user>hello<assistant>');
  if (!stream) {
    expect(JSON.parse(text).choices[0]).toMatchObject({
      message: {
        content: 'Hm.',
        tool_calls: [
          {
            id: expect.stringMatching(/^call_/),
            type: 'function',
            function: { name: 'add', arguments: '{"x": 1}' },
          },
        ],
      },
      finish_reason: 'tool_calls',
    });
    return;
  }
  const deltas = events(text).flatMap(({ choices: [c] }) => c.delta.tool_calls ?? []);
  expect(deltas[0]).toEqual({
    index: 0,
    id: expect.stringMatching(/^call_/),
    type: 'function',
    function: { name: 'add', arguments: '' },
  });
  expect(deltas.map((d: Json) => d.function.arguments).join('')).toBe('{"x": 1}');
  expect(events(text).at(-1).choices[0].finish_reason).toBe('tool_calls');
});

test('values that are written without their type have that of the tools of the request', async () => {
  const value = '<tool_call>\n<function=add>\n<parameter=x>\n1';
  const call = `${value}\n</parameter>\n</function>\n</tool_call>`;
  const s = await serve((prompt) => (prompt.includes('hello') ? call : value), { family: 'qwen3_coder' });
  const typed = (type: string) => [
    {
      type: 'function',
      function: { name: 'add', parameters: { type: 'object', properties: { x: { type } } } },
    },
  ];
  const written = async (body: object): Promise<unknown[]> => {
    const { text } = await post(s.url, chat, { messages: hello, ...body });
    const [{ message, finish_reason }] = JSON.parse(text).choices;
    return [finish_reason, message.tool_calls[0].function.arguments];
  };
  expect(await written({ tools: typed('integer') })).toEqual(['tool_calls', '{"x": 1}']);
  expect(await written({ tools: typed('string') })).toEqual(['tool_calls', '{"x": "1"}']);
  // A value is complete where the model ends, and is none where it was cut off.
  const open = { messages: [{ role: 'user', content: 'open' }], tools: typed('string') };
  expect(await written(open)).toEqual(['tool_calls', '{"x": "1"}']);
  expect(await written({ ...open, max_tokens: value.length })).toEqual(['length', '{"x": "1']);
});

test.each([false, true])(
  'of several calls only the first, where one alone was asked for (stream: %s)',
  async (stream) => {
    const s = await serve(() => `${CALL}\n${CALL.replace('1}', '2}')}`, { family: 'hermes' });
    const names = async (more: object): Promise<string[]> => {
      const { text } = await post(s.url, chat, { messages: hello, tools, stream, ...more });
      const all: Json[] = stream ? events(text) : [JSON.parse(text)];
      expect(all.at(-1).choices[0].finish_reason).toBe('tool_calls');
      const calls = all.flatMap(({ choices: [c] }) => (c.delta ?? c.message).tool_calls ?? []);
      return [
        ...new Set(calls.map((call: Json) => call.id).filter(Boolean)),
        calls.map((c: Json) => c.function.arguments).join(''),
      ] as string[];
    };
    expect(await names({})).toEqual([expect.any(String), expect.any(String), '{"x": 1}{"x": 2}']);
    expect(await names({ parallel_tool_calls: false })).toEqual([expect.any(String), '{"x": 1}']);
  },
);

test('without tools, or with none chosen, a call is text', async () => {
  const s = await serve(() => CALL, { family: 'hermes' });
  for (const body of [{}, { tools, tool_choice: 'none' }]) {
    const { text } = await post(s.url, chat, { messages: hello, ...body });
    expect(JSON.parse(text).choices[0]).toMatchObject({ message: { content: CALL }, finish_reason: 'stop' });
  }
});

test('earlier calls and their results reach the template', async () => {
  const s = await serve(() => 'ok');
  const call = { id: 'c1', type: 'function', function: { name: 'add', arguments: '{"x": 1}' } };
  const messages = [
    { role: 'developer', content: 'be brief' },
    {
      role: 'user',
      content: [
        { type: 'text', text: 'what ' },
        { type: 'text', text: 'is it' },
      ],
    },
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'c1', content: '2' },
  ];
  await post(s.url, chat, { messages });
  expect(s.prompt(0)).toBe('<system>be brief<user>what is it<assistant>(add 1)<tool>2<assistant>');
});

test.each([
  ['{"x": 1}', { x: 1 }],
  // As clients write it for tools without parameters.
  ['', {}],
  [' ', {}],
  // What a model wrote that is no object stays what it said.
  ['[1]', '[1]'],
  ['{"x": ', '{"x": '],
])('arguments of an earlier call, %j, are %j to the template', (written, shown) => {
  const call = { id: 'c1', function: { name: 'now', arguments: written } };
  expect(templateCalls([call])).toEqual([
    { ...call, type: 'function', function: { name: 'now', arguments: shown } },
  ]);
});

test('a schema, or a tool that must be called, becomes a grammar', async () => {
  const s = await serve(() => '{}', { family: 'hermes', grammars: 'engine' });
  const schema = { type: 'object', properties: { a: { type: 'integer' } } };
  const format = { type: 'json_schema', json_schema: { name: 'x', schema, strict: true } };
  await post(s.url, chat, { messages: hello, response_format: format });
  await post(s.url, chat, { messages: hello, response_format: { type: 'json_object' } });
  await post(s.url, chat, {
    messages: hello,
    tools,
    tool_choice: { type: 'function', function: { name: 'add' } },
  });
  expect(s.engine.requests.map(({ grammar }) => grammar)).toEqual([
    { kind: 'json-schema', schema: JSON.stringify(schema) },
    { kind: 'json-schema', schema: '{"type":"object"}' },
    { kind: 'structural-tag', tag: expect.stringContaining('{\\"name\\": \\"add\\", \\"arguments\\": ') },
  ]);
});

describe('tools beside a format', () => {
  const format = { type: 'json_object' };
  const asJson = { messages: hello, tools, response_format: format };
  const call = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>';
  // In a string of an answer there may be what looks like a call.
  const answer = JSON.stringify({ said: call });
  const kinds = (s: Served) => s.engine.requests.map(({ grammar }) => grammar?.kind);

  test.each([false, true])('a call is read, and what is JSON is an answer (stream: %s)', async (stream) => {
    const said = [call, answer];
    const s = await serve((_, index) => said[index] as string, { family: 'hermes', grammars: 'engine' });
    const answered = async (): Promise<[string, Json[]]> => {
      const { text } = await post(s.url, chat, { ...asJson, stream });
      const parts: Json[] = stream
        ? events(text).map(({ choices }) => choices[0].delta)
        : [JSON.parse(text).choices[0].message];
      return [
        parts.map(({ content }) => content ?? '').join(''),
        parts.flatMap(({ tool_calls }) => tool_calls ?? []),
      ];
    };
    const [none, calls] = await answered();
    expect([none, calls[0].function.name]).toEqual(['', 'add']);
    expect(calls.map((one: Json) => one.function.arguments).join('')).toBe('{"x": 1}');
    expect(await answered()).toEqual([answer, []]);
    expect(kinds(s)).toEqual(['structural-tag', 'structural-tag']);
  });

  test('what is no call is an answer from its first character on, and also where it is cut off', async () => {
    const said = ['<tool_call>\n{"name": "ad', '<tool_call>\n{"name": "mul", "arguments": {}}\n</tool_call>'];
    const s = await serve((_, index) => said[index] as string, { family: 'hermes', grammars: 'engine' });
    for (const text of said) {
      const answered = JSON.parse((await post(s.url, chat, asJson)).text);
      expect(answered.choices[0].message).toMatchObject({ content: text });
      expect(answered.choices[0].message.tool_calls).toBeUndefined();
    }
  });

  test('tools that may not be called leave the format alone', async () => {
    const s = await serve(() => answer, { family: 'hermes', grammars: 'engine' });
    const { text } = await post(s.url, chat, { ...asJson, tool_choice: 'none' });
    expect(JSON.parse(text).choices[0].message.content).toBe(answer);
    expect(s.engine.requests.map(({ grammar }) => grammar)).toEqual([
      { kind: 'json-schema', schema: '{"type":"object"}' },
    ]);
  });

  test('an engine without grammars refuses them by the name of the format', async () => {
    const s = await serve(() => '', { family: 'hermes' });
    const { status, text } = await post(s.url, chat, asJson);
    expect([status, JSON.parse(text).error.param]).toEqual([400, 'response_format']);
  });
});

test('hooks decide on ids and keep what came out', async () => {
  const s = await serve(() => 'ok');
  const records: unknown[] = [];
  const answer = await answerChat(
    s.model,
    { messages: hello, temperature: 2 },
    new AbortController().signal,
    {
      promptIds: ({ messages }) => Buffer.from(`ids of ${messages.length}`),
      sampling: (asked) => ({ ...asked, temperature: 1 }),
      request: { session: 'agent' },
      onRecord: (record, choice) => records.push([choice, record]),
    },
  );
  expect(answer).toMatchObject({ body: { choices: [{ message: { content: 'ok' } }] } });
  expect(s.engine.requests[0]).toMatchObject({ session: 'agent', sampling: { temperature: 1 } });
  expect(records).toEqual([
    [
      0,
      expect.objectContaining({
        promptIds: Buffer.from('ids of 1'),
        tokens: Int32Array.from([...Buffer.from('ok'), 256]),
        versions: [{ version: 3, start: 0, end: 3 }],
        finish: 'stop',
      }),
    ],
  ]);
});
