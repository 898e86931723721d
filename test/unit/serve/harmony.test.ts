import { readFileSync, rmSync } from 'node:fs';
import path from 'node:path';
import { endTokenIds } from '../../../ts/data/end_tokens';
import { TokenBytes } from '../../../ts/data/token_bytes';
import type { Grammar } from '../../../ts/rollout/request';
import { answerMessages } from '../../../ts/serve/anthropic/messages';
import { parseMessages } from '../../../ts/serve/anthropic/messages_request';
import type { Dialect } from '../../../ts/serve/call/answer';
import { conversationText, replyMessage } from '../../../ts/serve/call/conversation';
import { GrammarThreads, grammarVocabulary } from '../../../ts/serve/grammar/grammar_threads';
import { forcedCalls, responseForm } from '../../../ts/serve/openai/formats';
import { answerResponses } from '../../../ts/serve/openai/responses';
import { parseResponses } from '../../../ts/serve/openai/responses_request';
import { familyOf, responseReading, toolFamily } from '../../../ts/serve/tools/families';
import { HARMONY_TAGS } from '../../../ts/serve/tools/harmony';
import { CallCollector, type ToolParser } from '../../../ts/serve/tools/tool_parser';
import { HARMONY_TEMPLATE } from '../../helpers/harmony_template';
import { chatTokenizer } from '../agent/chat_world';
import { events, type Json, post, type Served, served } from './served';

// What openai-harmony reads in responses of gpt-oss (make_cases.py).
const recorded = JSON.parse(
  readFileSync(path.join(__dirname, '../../fixtures/harmony/cases.json'), 'utf8'),
) as {
  ends: string[];
  cases: { response: string; messages: { channel: string; recipient: string | null; text: string }[] }[];
};

const TOOLS = ['get_weather', 'time'].map((name) => ({
  type: 'function' as const,
  function: {
    name,
    parameters: { type: 'object', properties: { x: { type: 'integer' } }, required: ['x'] },
  },
}));
const family = toolFamily('gpt-oss');
const reading = (): ToolParser => family.parser(TOOLS);

/** In pieces of so many characters. */
function read(parser: ToolParser, response: string, size: number, cut = false) {
  const collector = new CallCollector();
  const all = { text: '', reasoning: '' };
  const take = ({ text, reasoning = '', calls }: ReturnType<ToolParser['push']>): void => {
    all.text += text;
    all.reasoning += reasoning;
    collector.add(calls);
  };
  for (let at = 0; at < response.length; at += size) take(parser.push(response.slice(at, at + size)));
  take(parser.end(cut));
  return { ...all, calls: collector.calls.map(({ name, arguments: source }) => [name, source]) };
}

const SIZES = [1, 2, 3, 7, 10_000];

test.each(recorded.cases)('as openai-harmony reads it: $response', ({ response, messages }) => {
  const cut = !/<\|(call|return)\|>$/.test(response);
  const words = (thought: boolean): string =>
    messages
      .filter(({ recipient, channel }) => recipient === null && (channel === 'analysis') === thought)
      .map(({ text }) => text)
      .join('\n');
  const calls = messages.flatMap(({ recipient, text }) =>
    recipient === null ? [] : [[recipient.replace('functions.', ''), text]],
  );
  for (const size of SIZES)
    expect([size, read(reading(), response, size, cut)]).toEqual([
      size,
      { text: words(false), reasoning: words(true), calls },
    ]);
});

test('calls that come in one piece are given out one after the other', () => {
  const call = '<|channel|>commentary to=functions.time<|message|>{}<|call|>';
  const { calls } = reading().push(`${call}<|start|>assistant${call}`);
  expect(calls.map(({ index, name, arguments: source }) => [index, name, source])).toEqual([
    [0, 'time', ''],
    [0, undefined, '{}'],
    [1, 'time', ''],
    [1, undefined, '{}'],
  ]);
});

const FINAL = '<|channel|>final<|message|>';
test.each<[string, string, Partial<ReturnType<typeof read>>]>([
  ['plain text', 'no channels < here', { text: 'no channels < here' }],
  ['text behind an answer', `${FINAL}one<|end|>two`, { text: 'one\ntwo' }],
  ['an end that is missing', `${FINAL}one<|start|>assistant${FINAL}two`, { text: 'one\ntwo' }],
  [
    'a channel without an end before it',
    `<|channel|>analysis<|message|>so${FINAL}two`,
    { reasoning: 'so', text: 'two' },
  ],
  ['no namespace', '<|channel|>commentary to=time<|message|>{}<|call|>', { calls: [['time', '{}']] }],
  [
    'no arguments',
    '<|channel|>commentary to=functions.time <|constrain|>json<|message|><|call|>',
    { calls: [['time', '{}']] },
  ],
  [
    'arguments that are null',
    '<|channel|>commentary to=functions.time <|constrain|>json<|message|> null<|call|>',
    { calls: [['time', '{}']] },
  ],
  ['a tool of nobody', '<|channel|>analysis to=python code<|message|>1 + 1<|call|>', { reasoning: '1 + 1' }],
  [
    'a tool that was not offered',
    '<|channel|>commentary to=functions.other<|message|>{}<|call|>',
    { calls: [['other', '{}']] },
  ],
  [
    'a head that is too long for one',
    `<|channel|>${'x'.repeat(1500)}${FINAL}one`,
    { text: `<|channel|>${'x'.repeat(1500)}\none` },
  ],
  ['a head that never ends', '<|channel|>analysis', {}],
])('%s', (_, response, expected) => {
  for (const size of SIZES)
    expect([size, read(reading(), response, size)]).toEqual([
      size,
      { text: '', reasoning: '', calls: [], ...expected },
    ]);
});

test('whatever is written, in whatever pieces: the same, with an end', () => {
  const words = [
    ...HARMONY_TAGS,
    'analysis',
    'final',
    'commentary',
    ' to=functions.time',
    'to=time',
    ' ',
    '{"x": 1}',
    'null',
    '<',
    '\n',
    'a b',
  ];
  let seed = 7;
  const draw = (count: number): number => {
    seed = (seed * 48271) % 2147483647;
    return seed % count;
  };
  for (let round = 0; round < 400; round++) {
    const response = Array.from({ length: 1 + draw(14) }, () => words[draw(words.length)]).join('');
    const whole = read(reading(), response, 10_000);
    for (const size of SIZES) expect([response, read(reading(), response, size)]).toEqual([response, whole]);
  }
});

test('arguments come as they are written, and stay open where the response is cut', () => {
  const parser = reading();
  const begun = parser.push('<|channel|>commentary to=functions.time <|constrain|>json<|message|>');
  expect(begun.calls).toMatchObject([{ index: 0, name: 'time', arguments: '' }]);
  expect(parser.push('{"x"').calls).toEqual([{ index: 0, arguments: '{"x"' }]);
  expect(parser.end(true).calls).toEqual([]);
  const empty = reading();
  empty.push('<|channel|>commentary to=functions.time <|constrain|>json<|message|>');
  expect(empty.end(true).calls).toEqual([]);
});

test('where no tool may be called, a call is text, and thoughts are none of it', () => {
  const call = '<|channel|>commentary to=functions.time <|constrain|>json<|message|>{}';
  const parser = responseReading(family, null)?.parser() as ToolParser;
  const response = `<|channel|>analysis<|message|>so<|end|><|start|>assistant${call}<|call|>`;
  expect(read(parser, response, 3)).toEqual({
    text: `<|start|>assistant${call}`,
    reasoning: 'so',
    calls: [],
  });
  expect(responseReading(toolFamily('hermes'), null)).toBeNull();
});

describe('the template', () => {
  const tokenizer = chatTokenizer(HARMONY_TEMPLATE, [...HARMONY_TAGS]);
  const idOf = (tag: string): number => 256 + HARMONY_TAGS.indexOf(tag);
  const conversation = (messages: object[]) => ({
    messages: messages as Parameters<typeof conversationText>[1]['messages'],
    tools: TOOLS,
    variables: {},
    opened: true,
  });

  test('says that it is this family, and what ends a response', () => {
    expect(familyOf(tokenizer.toolTemplate)?.name).toBe('gpt-oss');
    expect(recorded.ends).toEqual(['<|call|>', '<|return|>']);
    expect(endTokenIds([idOf('<|return|>')], tokenizer)).toEqual(recorded.ends.map(idOf).reverse());
    expect(endTokenIds([7], { eosId: null, addedTokens: () => new Map() })).toEqual([7]);
  });

  test('a reply goes back as the template writes it: thoughts until there is an answer', () => {
    const call = { id: 'c', name: 'time', arguments: '{"x": 1}' };
    const asked = [
      { role: 'user', content: 'when?' },
      replyMessage({ text: '', calls: [call], reasoning: 'I ask.' }),
      { role: 'tool', tool_call_id: 'c', content: '12' },
    ];
    const written = conversationText(tokenizer, conversation(asked));
    expect(written).toContain(
      '<|start|>assistant<|channel|>analysis<|message|>I ask.<|end|><|start|>assistant to=functions.time<|channel|>commentary json' +
        '<|message|>{"x": 1}<|call|><|start|>functions.time to=assistant<|channel|>commentary<|message|>"12"<|end|><|start|>assistant',
    );
    const answered = [
      ...asked,
      replyMessage({ text: 'Noon.', calls: [], reasoning: 'So.' }),
      { role: 'user', content: 'thanks' },
    ];
    const next = conversationText(tokenizer, conversation(answered));
    expect(next).not.toContain('analysis');
    expect(next).toContain('final<|message|>Noon.<|end|><|start|>user');
  });

  test('words and thoughts before a call: the thoughts are written, which the template refuses beside words', () => {
    const reply = replyMessage({
      text: 'Let me see.',
      calls: [{ id: 'c', name: 'time', arguments: '{}' }],
      reasoning: 'I ask.',
    });
    const written = conversationText(tokenizer, conversation([{ role: 'user', content: 'when?' }, reply]));
    expect(written).toContain('analysis<|message|>I ask.<|end|>');
    expect(written).not.toContain('Let me see.');
  });
});

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
    const other = { ...server.model, family: toolFamily('hermes') };
    expect(parseResponses(other, back).call.conversation.messages[1]).not.toHaveProperty('reasoning_content');
  });
});

describe('grammars', () => {
  const tokenizer = chatTokenizer(HARMONY_TEMPLATE, [...HARMONY_TAGS]);
  const ends = endTokenIds([], tokenizer);
  const vocabulary = grammarVocabulary(tokenizer, new TokenBytes(tokenizer), {
    vocabSize: tokenizer.vocabSize,
    stopTokenIds: ends,
    tags: HARMONY_TAGS,
  });
  const grammars = new GrammarThreads(vocabulary);
  afterAll(async () => {
    await grammars.close();
    rmSync(tokenizer.directory, { recursive: true, force: true });
  });

  async function takes(grammar: Grammar, text: string): Promise<boolean> {
    const constraint = await grammars.open(grammar);
    let last = new Int32Array(0);
    try {
      for (const token of tokenizer.encode(text)) {
        const mask = (await constraint.next(last)) as Uint32Array;
        if (!(((mask[token >> 5] as number) >>> (token & 31)) & 1)) return false;
        last = Int32Array.of(token);
      }
      return true;
    } finally {
      constraint.close();
    }
  }
  const choice = { forced: false, name: null, parallel: true };
  const schema = {
    type: 'object',
    properties: { a: { type: 'integer' } },
    required: ['a'],
    additionalProperties: false,
  };
  const format = { type: 'json_schema' as const, json_schema: { schema } };
  const THOUGHT = '<|channel|>analysis<|message|>Let < me {see}.<|end|><|start|>assistant';
  const CALL = '<|channel|>commentary to=functions.time <|constrain|>json<|message|>{"x": 1}<|call|>';
  const ANSWER = `${FINAL}{"a": 1}<|return|>`;

  test('a call that must be made', async () => {
    const grammar = forcedCalls(family, TOOLS, 'time', true);
    expect(await takes(grammar, CALL)).toBe(true);
    for (const other of [CALL.replace('time', 'get_weather'), CALL.replace('1', '"1"'), ANSWER])
      expect([other, await takes(grammar, other)]).toEqual([other, false]);
  });

  test.each([
    ['JSON of a schema, perhaps after a thought', null],
    ['the same beside calls', TOOLS],
  ])('%s', async (_, tools) => {
    const { grammar, tools: calls } = responseForm(family, tools, choice, format);
    for (const text of [ANSWER, THOUGHT + ANSWER]) {
      expect([text, await takes(grammar as Grammar, text)]).toEqual([text, true]);
      expect(read(calls?.parser() as ToolParser, text, 3).text).toBe('{"a": 1}');
    }
    for (const text of [CALL, THOUGHT + CALL])
      expect([text, await takes(grammar as Grammar, text)]).toEqual([text, tools !== null]);
    for (const text of ['{"a": 1}<|return|>', `${FINAL}no<|return|>`, `${THOUGHT}{"a": 1}<|return|>`])
      expect([text, await takes(grammar as Grammar, text)]).toEqual([text, false]);
  });
});
