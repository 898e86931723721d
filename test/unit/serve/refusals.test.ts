import type { Dialect } from '../../../ts/serve/call/answer';
import { ApiError } from '../../../ts/serve/call/api_error';
import { answerChat } from '../../../ts/serve/openai/chat';
import { parseChat } from '../../../ts/serve/openai/chat_request';
import { answerCompletions } from '../../../ts/serve/openai/completions';
import { parseJson } from '../../../ts/serve/openai/fields';
import { answerResponses } from '../../../ts/serve/openai/responses';
import { type Json, post, servers, until } from './served';

const chat = '/v1/chat/completions';
const hello = [{ role: 'user', content: 'hello' }];
const serve = servers();

const tools = [{ type: 'function', function: { name: 'add', parameters: { type: 'object' } } }];

const REFUSED: [string, Json, number, string | null, RegExp][] = [
  ['no messages', { messages: [] }, 400, 'messages', /messages/],
  ['no such field', { messages: hello, temprature: 1 }, 400, 'temprature', /did you mean temperature/],
  ['a wrong type', { messages: hello, temperature: 'warm' }, 400, 'temperature', /number/],
  ['out of range', { messages: hello, top_p: 2 }, 400, 'top_p', /<=1/],
  [
    'a wrong part of a message',
    { messages: [{ role: 'user', content: [{ type: 'image_url' }] }] },
    400,
    'messages.0.content.0.type',
    /text only/,
  ],
  ['a role that is none', { messages: [{ role: 'cat', content: '' }] }, 400, 'messages.0.role', /role/],
  ['tools without a family', { messages: hello, tools }, 400, 'tools', /knows no tools/],
  ['a choice without tools', { messages: hello, tool_choice: 'required' }, 400, 'tool_choice', /no tools/],
  [
    'a grammar that the engine has not',
    { messages: hello, response_format: { type: 'json_object' } },
    400,
    'response_format',
    /grammar/,
  ],
  ['top_logprobs alone', { messages: hello, top_logprobs: 2 }, 400, 'top_logprobs', /logprobs: true/],
  ['another model', { messages: hello, model: 'gpt-9' }, 404, 'model', /only "tiny"/],
  [
    'too long a response',
    { messages: hello, max_tokens: 5000 },
    400,
    'max_tokens',
    /maximum context length is 4096/,
  ],
  [
    'too long a response, by its other name',
    { messages: hello, max_completion_tokens: 5000 },
    400,
    'max_completion_tokens',
    /maximum context length is 4096/,
  ],
  [
    'a bias for what is no token',
    { messages: hello, logit_bias: { 5000: 1 } },
    400,
    'logit_bias',
    /token ids from 0 to 256.*got 5000/,
  ],
  [
    'a bias for a word',
    { messages: hello, logit_bias: { hello: 1 } },
    400,
    'logit_bias.hello',
    /expected a token id as key/,
  ],
  [
    'a bias without end',
    { messages: hello, logit_bias: { 5: 1e9 } },
    400,
    'logit_bias.5',
    /from -100 to 100/,
  ],
  ['biases that are a number', { messages: hello, logit_bias: 5 }, 400, 'logit_bias', /an object/],
  ['a list of biases', { messages: hello, logit_bias: [1] }, 400, 'logit_bias', /an object/],
  ['an end of half a character', { messages: hello, stop: 'a\ud83d' }, 400, 'stop', /half a surrogate pair/],
  [
    'ends of which one is half a character',
    { messages: hello, stop: ['\u{1f600}', '\ude00'] },
    400,
    'stop.1',
    /half a surrogate pair/,
  ],
  [
    'an end that is no token',
    { messages: hello, stop_token_ids: [3, 257] },
    400,
    'stop_token_ids',
    /token ids from 0 to 256.*got 257/,
  ],
  [
    'a temperature that is hardly one',
    { messages: hello, temperature: 1e-9 },
    400,
    'temperature',
    /0 \(greedy\), or a number from 0.000001/,
  ],
  [
    'what the template refuses',
    { messages: [{ role: 'user', content: 'forbidden' }] },
    400,
    'messages',
    /messages: .*not this/,
  ],
  [
    'a penalty by next to nothing',
    { messages: hello, repetition_penalty: 1e-300 },
    400,
    'repetition_penalty',
    />=0.000001/,
  ],
  [
    'more variables than a template has',
    {
      messages: hello,
      chat_template_kwargs: Object.fromEntries(Array.from({ length: 257 }, (_, i) => [`v${i}`, 1])),
    },
    400,
    'chat_template_kwargs',
    /at most 256 variables/,
  ],
  [
    'a variable of a template with more values than one has',
    { messages: hello, chat_template_kwargs: { ids: Array.from({ length: 10_001 }, () => 1) } },
    400,
    'chat_template_kwargs',
    /at most 10000 values/,
  ],
  ['more messages than a conversation has', { messages: Array(16_385).fill({}) }, 400, 'messages', /<=16384/],
  [
    'a message without words',
    { messages: [{ role: 'user' }] },
    400,
    'messages.0.content',
    /expected a text, or/,
  ],
  [
    'an option of streams that nobody heeds',
    { messages: hello, stream: true, stream_options: { continuous_usage_stats: true } },
    400,
    'stream_options.continuous_usage_stats',
    /no such field/,
  ],
  ['an empty salt', { messages: hello, cache_salt: '' }, 400, 'cache_salt', /cache_salt/],
  ['too many stop texts', { messages: hello, stop: Array(17).fill('a') }, 400, 'stop', /at most 16/],
  ['a body that is no object', [], 400, null, /object/],
];

const deep = ['{"a":'.repeat(100_000), '}'.repeat(100_000)].join('1');
test.each([
  [
    'nested too deeply, behind a key that comes twice',
    `{"n":1,"n":1,"text":{"format":{"type":"json_schema","schema":${deep}}}}`,
    /too deeply/,
  ],
  ['nested without an end', '['.repeat(1_000_000), /too deeply/],
  [
    'of more keys than a conversation has',
    JSON.stringify({ logit_bias: Array.from({ length: 100_001 }, () => ({ a: 1 })) }),
    /at most 100000 keys/,
  ],
])('a body %s is refused before it is parsed', (_, text, message) => {
  const parse = jest.spyOn(JSON, 'parse');
  try {
    expect(() => parseJson(text)).toThrow(message);
    expect(parse).not.toHaveBeenCalled();
  } finally {
    parse.mockRestore();
  }
});

test('what a template would be shown is bounded', async () => {
  const s = await serve(() => '');
  const body = { messages: [{ ...hello[0], more: Array(200_000).fill(1) }] };
  const answer = answerChat(s.model, body, new AbortController().signal);
  await expect(answer).rejects.toThrow(/at most 200000 values in all its lists and objects/);
});

test('colons and brackets of texts are none', () => {
  const said = { text: '[:{"\\'.repeat(200_000) };
  expect(parseJson(JSON.stringify(said))).toEqual(said);
});

test.each(REFUSED)('%s is refused', async (_, body, expected, param, message) => {
  const s = await serve(() => '');
  const { status, text } = await post(s.url, chat, body);
  expect([status, JSON.parse(text).error.param]).toEqual([expected, param]);
  expect(JSON.parse(text).error.message).toMatch(message);
  expect(s.engine.requests).toHaveLength(0);
});

const PROMPTS: [string, Json, string, RegExp][] = [
  ['a prompt that is empty', { prompt: '' }, 'prompt', /not empty/],
  ['one of several prompts that is empty', { prompt: ['a', ''] }, 'prompt', /not empty/],
  ['too many prompts', { prompt: Array(257).fill('a') }, 'prompt', /at most 256 prompts, got 257/],
  ['a prompt that is none', { prompt: 5 }, 'prompt', /a text, token ids, or a list of either/],
  ['an id that is no number', { prompt: [3, 'x'] }, 'prompt.1', /expected a token id/],
  ['an id below 0', { prompt: [[3], [4, -1]] }, 'prompt.1.1', /expected a token id/],
  ['ids beside a text', { prompt: ['a', [3]] }, 'prompt.1', /a text, token ids, or a list of either/],
  ['no prompt among several', { prompt: [[3], []] }, 'prompt.1', /a text, token ids, or a list of either/],
  ['no prompts', { prompt: [] }, 'prompt', /a text, token ids, or a list of either/],
  ['an end that is no number', { prompt: 'a', stop_token_ids: [3, 0.5] }, 'stop_token_ids.1', /a token id/],
  ['an id that is no token', { prompt: [3, 5000] }, 'prompt', /token ids from 0 to 256.*got 5000/],
  ['too long a prompt', { prompt: 'x'.repeat(4096) }, 'prompt', /maximum context length is 4096.*has 4096/],
  ['too long a response', { prompt: 'x', max_tokens: 4096 }, 'max_tokens', /4096 were asked for/],
];

test.each(PROMPTS)('a completion with %s is refused', async (_, body, param, message) => {
  const s = await serve(() => '');
  const { status, text } = await post(s.url, '/v1/completions', body);
  expect([status, JSON.parse(text).error.param]).toEqual([400, param]);
  expect(JSON.parse(text).error.message).toMatch(message);
  await until(() => s.engine.running === 0);
});

test('a schema that cannot be used is refused by the name of its field', async () => {
  const open = () => Promise.reject(new ApiError(400, 'this schema cannot be used', null, 'invalid_schema'));
  const s = await serve(() => '', { family: 'hermes', grammars: { open, close: async () => undefined } });
  const format = { type: 'json_object' };
  const asked: [Dialect, object, string][] = [
    [answerChat, { messages: hello, response_format: format }, 'response_format'],
    [answerChat, { messages: hello, tools, tool_choice: 'required' }, 'tools'],
    [answerResponses, { input: 'hello', text: { format } }, 'text.format'],
  ];
  for (const [dialect, body, param] of asked)
    await expect(dialect(s.model, body, new AbortController().signal)).rejects.toMatchObject({
      status: 400,
      param,
      code: 'invalid_schema',
      message: `${param}: this schema cannot be used`,
    });
});

test('a text that cannot fit is refused before its tokens are looked for', async () => {
  const s = await serve(() => '', { server: { maxBodyBytes: 1_000_000 } });
  const encode = jest.spyOn(s.model.tokenizer, 'encode');
  // The longest token is <|im_end|>.
  const text = 'x'.repeat(10 * 4096 + 1);
  for (const [path, body, param] of [
    [chat, { messages: [{ role: 'user', content: text }] }, 'messages'],
    ['/v1/completions', { prompt: text }, 'prompt'],
  ] as const) {
    const { status, text: answer } = await post(s.url, path, body);
    expect([status, JSON.parse(answer).error]).toEqual([
      400,
      expect.objectContaining({
        param,
        code: 'context_length_exceeded',
        message: expect.stringMatching(
          /4096 tokens, none of more than 10 bytes: the prompt has 409\d\d char/,
        ),
      }),
    ]);
  }
  expect(encode).not.toHaveBeenCalled();
});

test.each<[string, (entries: Json[]) => Json]>([
  ['messages', (messages) => ({ messages })],
  ['messages.0.content', (content) => ({ messages: [{ role: 'user', content }] })],
])('of a list of wrong entries only the first one is looked at: %s', async (path, bodyOf) => {
  const s = await serve(() => '');
  let looked = 0;
  const wrong = Array.from({ length: 100 }, (_, i) => ({
    get type(): string {
      if (i > 0) looked++;
      return 'none';
    },
    get role(): string {
      if (i > 0) looked++;
      return 'none';
    },
  }));
  const refused = answerChat(s.model, bodyOf(wrong), new AbortController().signal);
  await expect(refused).rejects.toMatchObject({
    status: 400,
    param: expect.stringContaining(`${path}.0.`),
  });
  expect(looked).toBe(0);
});

test.each(['token ', '1'])(
  'of a record of wrong entries only the first one is looked at: %s0',
  async (name) => {
    const s = await serve(() => '');
    let looked = 0;
    const wrong = {};
    for (let i = 0; i < 100; i++) {
      const get = (): number => {
        if (i > 0) looked++;
        return 1000;
      };
      Object.defineProperty(wrong, `${name}${i}`, { enumerable: true, get });
    }
    const refused = answerChat(s.model, { messages: hello, logit_bias: wrong }, new AbortController().signal);
    await expect(refused).rejects.toMatchObject({ status: 400, param: `logit_bias.${name}0` });
    expect(looked).toBe(0);
  },
);

test('of too many prompts none is looked at, and of parameters of tools none by itself', async () => {
  const s = await serve(() => '', { family: 'hermes' });
  let looked = 0;
  const counted = <T extends object>(target: T, count: number, value: unknown): T => {
    for (let i = 0; i < count; i++) {
      const get = (): unknown => {
        looked++;
        return value;
      };
      Object.defineProperty(target, i, { enumerable: true, get });
    }
    return target;
  };
  const { signal } = new AbortController();
  const refused = answerCompletions(s.model, { prompt: counted([], 300, [1]) }, signal);
  await expect(refused).rejects.toMatchObject({ message: 'prompt: expected at most 256 prompts, got 300' });
  expect(looked).toBeLessThan(5);
  looked = 0;
  const named = { type: 'function', function: { name: 'add', parameters: counted({}, 300, {}) } };
  const { call } = parseChat(s.model, { messages: hello, tools: [named] });
  expect(Object.keys(call.conversation.tools?.[0]?.function.parameters ?? {})).toHaveLength(300);
  expect(looked).toBe(0);
});

test('an end that is named many times is one end to the engine', async () => {
  const s = await serve(() => 'yes');
  const { status } = await post(s.url, chat, { messages: hello, stop_token_ids: [5, 5, 6, 5] });
  expect([status, s.engine.requests[0]?.sampling.stopTokenIds]).toEqual([200, [256, 5, 6]]);
});

test('a bias for many tokens reaches the engine', async () => {
  const s = await serve(() => 'yes');
  const bias = Object.fromEntries(Array.from({ length: 257 }, (_, id) => [id, (id + 1) / 257]));
  expect((await post(s.url, chat, { messages: hello, logit_bias: bias })).status).toBe(200);
  const expected = new Map(Object.entries(bias).map(([id, by]) => [Number(id), by]));
  expect(s.engine.requests[0]?.sampling.logitBias).toEqual(expected);
});

test('what is null in a tool or a schema is as if it were absent', async () => {
  const s = await serve(() => 'yes', { family: 'hermes', grammars: 'engine' });
  const ask = async (tool: object, format: object): Promise<unknown> => {
    const named = { type: 'function', function: { name: 'add', ...tool } };
    const response_format = { type: 'json_schema', json_schema: { schema: { type: 'object' }, ...format } };
    const { status } = await post(s.url, chat, { messages: hello, tools: [named], response_format });
    return [status, s.prompt(s.engine.requests.length - 1), s.engine.requests.at(-1)?.grammar];
  };
  const absent = await ask({}, {});
  expect(absent).toMatchObject([200, '[add]<user>hello<assistant>', { kind: 'structural-tag' }]);
  const given = { description: null, parameters: null, strict: null };
  expect(await ask(given, { name: null, description: null, strict: null })).toEqual(absent);
});
