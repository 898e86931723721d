import { END, events, type Json, post, type Served, servers } from './served';

const serve = servers();

test('completions take text and ids, several at a time', async () => {
  const s = await serve((prompt) => `${prompt}!`);
  const { text } = await post(s.url, '/v1/completions', { prompt: ['ab', 'c'], max_tokens: 9, logprobs: 1 });
  const { choices, usage } = JSON.parse(text);
  expect(choices.map((c: Json) => [c.index, c.text, c.finish_reason])).toEqual([
    [0, 'ab!', 'stop'],
    [1, 'c!', 'stop'],
  ]);
  expect(choices[0].logprobs).toMatchObject({
    tokens: ['a', 'b', '!', '<|im_end|>'],
    text_offset: [0, 1, 2, 3],
  });
  expect([usage.prompt_tokens, usage.completion_tokens]).toEqual([3, 7]);
  // Of each prompt at most four tokens are in the cache.
  const { text: longer } = await post(s.url, '/v1/completions', { prompt: ['abcdef', 'c', 'defghi'], n: 2 });
  expect(JSON.parse(longer).usage.prompt_tokens_details).toEqual({ cached_tokens: 4 + 1 + 4 });
  const streamed = await post(s.url, '/v1/completions', {
    prompt: [97, 98],
    stream: true,
    return_token_ids: true,
  });
  const parts = events(streamed.text).map(({ choices: [c] }) => c);
  expect(parts.map(({ text: part }) => part).join('')).toBe('ab!');
  expect(parts.flatMap(({ token_ids }) => token_ids ?? [])).toEqual([97, 98, 33, 256]);
  const wrong = await post(s.url, '/v1/completions', { prompt: 'a', echo: true });
  expect([wrong.status, JSON.parse(wrong.text).error.param]).toEqual([400, 'echo']);
});

test('who does not say how many tokens gets 16, or what there is room for', async () => {
  const s = await serve(() => 'x'.repeat(100), { script: { maxTokens: 20 } });
  const tokens = async (body: object): Promise<number> =>
    JSON.parse((await post(s.url, '/v1/completions', body)).text).usage.completion_tokens;
  expect(await tokens({ prompt: 'abc' })).toBe(16);
  expect(await tokens({ prompt: 'abcdefghij' })).toBe(10);
  expect(await tokens({ prompt: ['abc', 'abcdefghij'], max_tokens: null })).toBe(26);
  const { status, text } = await post(s.url, '/v1/completions', { prompt: 'abcdefghij', max_tokens: 16 });
  expect([status, JSON.parse(text).error.message]).toEqual([
    400,
    expect.stringMatching(/prompt has 10, and 16 were asked for/),
  ]);
});

test('many prompts of one request are no leak of listeners, and others get their turn while they begin', async () => {
  const s = await serve((prompt) => prompt);
  const listens = jest.spyOn(EventTarget.prototype, 'addEventListener');
  const prompt = Array.from({ length: 40 }, (_, i) => `p${i}`);
  let turns = 0;
  const submit = s.engine.submit;
  jest.spyOn(s.engine, 'submit').mockImplementation((request) => {
    if (s.engine.requests.length === 0) setImmediate(() => turns++);
    expect(s.engine.requests.length === 39 ? turns : 1).toBe(1);
    return submit(request);
  });
  const { status, text } = await post(s.url, '/v1/completions', { prompt });
  expect(status).toBe(200);
  expect(JSON.parse(text).choices.map((choice: Json) => choice.text)).toEqual(prompt);
  const targets = listens.mock.contexts as unknown as EventTarget[];
  listens.mockRestore();
  const many = [...new Set(targets)].filter((one) => targets.filter((other) => other === one).length >= 40);
  // By its name: getMaxListeners does not know a target of another realm.
  const limit = (target: EventTarget): unknown =>
    Reflect.get(
      target,
      Object.getOwnPropertySymbols(target).find(
        ({ description }) => description === 'events.maxEventTargetListeners',
      ) as symbol,
    );
  expect(many.map(limit)).toEqual([0]);
});

/** The log-probs of the one choice, whole or streamed. */
async function logProbsOf(s: Served, body: object): Promise<Json> {
  const { text } = await post(s.url, '/v1/completions', { prompt: 'a', ...body });
  if (!('stream' in body && body.stream)) return JSON.parse(text).choices[0].logprobs;
  const parts = events(text).flatMap(({ choices: [c] }) => (c.logprobs === null ? [] : [c.logprobs]));
  const joined = (key: string): unknown[] => parts.flatMap((part) => part[key]);
  return Object.fromEntries(
    ['tokens', 'token_logprobs', 'top_logprobs', 'text_offset'].map((key) => [key, joined(key)]),
  );
}

test.each([
  [false, 1],
  [true, 1],
  [true, 3],
])(
  'offsets are those of the text, and parts of characters are bytes (stream: %s, tokens at a time: %s)',
  async (stream, span) => {
    const s = await serve(() => 'h\u00e9\u{1f44d}!', { script: { span } });
    const { tokens, text_offset } = await logProbsOf(s, { logprobs: 1, stream });
    expect(tokens).toEqual([
      'h',
      ...['bytes:\\xc3', 'bytes:\\xa9'],
      ...['bytes:\\xf0', 'bytes:\\x9f', 'bytes:\\x91', 'bytes:\\x8d'],
      '!',
      '<|im_end|>',
    ]);
    expect(text_offset).toEqual([0, 1, 1, 2, 2, 2, 2, 3, 4]);
  },
);

test.each([false, true])(
  'bytes that are no text stand before what follows them (stream: %s)',
  async (stream) => {
    // Parts of characters that nothing completes, a whole one, and one that is given up for want of more.
    const s = await serve(() => [0xf1, 0x61, 0x9c, 0xcf, 0x62, 0xf0, 0x9f, 0xc3, 0xa9, 0x63, END]);
    const { tokens, text_offset } = await logProbsOf(s, { logprobs: 0, stream });
    const text = [...'\ufffda\ufffd\ufffdb\ufffd\u00e9c'];
    const whole = ['a', 'b', 'c'].map((token) => text_offset[tokens.indexOf(token)]);
    expect(whole).toEqual(['a', 'b', 'c'].map((token) => text.indexOf(token)));
    expect(text_offset).toEqual([...text_offset].sort((a, b) => a - b));
  },
);

test('the token that was drawn is among the likeliest, also where it is not, and each has a key', async () => {
  const s = await serve(() => '\u00e9', { script: { top: (token, k) => token + 1 + k } });
  const { tokens, token_logprobs, top_logprobs } = await logProbsOf(s, { logprobs: 2 });
  expect(top_logprobs.slice(0, 2).map(Object.keys)).toEqual([
    ['bytes:\\xc4', 'bytes:\\xc5', 'bytes:\\xc3'],
    ['bytes:\\xaa', 'bytes:\\xab', 'bytes:\\xa9'],
  ]);
  expect(tokens.map((token: string, i: number) => top_logprobs[i][token])).toEqual(token_logprobs);
});

test('a stream with token ids has those of the prompts, and the versions of the weights', async () => {
  const s = await serve(() => 'yes');
  const streamed = async (path: string, body: object): Promise<Json[]> =>
    events((await post(s.url, path, { stream: true, return_token_ids: true, ...body })).text);
  const completions = await streamed('/v1/completions', { prompt: ['ab', 'c'] });
  const choices = completions.map(({ choices: [c] }) => c);
  const own = (index: number): Json[] => choices.filter((choice) => choice.index === index);
  for (const [index, prompt] of ['ab', 'c'].entries()) {
    expect(own(index).flatMap(({ prompt_token_ids }) => prompt_token_ids ?? [])).toEqual([
      ...Buffer.from(prompt),
    ]);
    expect(own(index)[0]).toHaveProperty('prompt_token_ids');
    expect(own(index).at(-1).weight_versions).toEqual([{ version: 3, start: 0, end: 4 }]);
  }
  const messages = [{ role: 'user', content: 'hello' }];
  const chats = await streamed('/v1/chat/completions', { messages });
  expect(chats.at(-1).choices[0].weight_versions).toEqual([{ version: 3, start: 0, end: 4 }]);
  expect(chats.filter(({ choices: [c] }) => 'weight_versions' in c)).toHaveLength(1);
});
