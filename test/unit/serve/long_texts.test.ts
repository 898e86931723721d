import { setTimeout as sleep } from 'node:timers/promises';
import { type Json, post, type Served, served } from './served';

let s: Served;
beforeEach(async () => {
  s = await served(() => 'ok', { script: { maxTokens: 65_536 }, server: { maxBodyBytes: 20_000_000 } });
});
afterEach(() => s.close());

/** With characters of several bytes, that nothing may cut in two; 9 tokens each time. */
const PIECE = 'a \u00e4\u{1f600}1';
const text = PIECE.repeat(80_000);

const bodies: [string, Json][] = [
  ['/v1/completions', { prompt: text }],
  ['/v1/completions', { prompt: Array.from({ length: 50 }, () => text.slice(0, 9_600)) }],
  ['/v1/chat/completions', { messages: [{ role: 'user', content: text }] }],
];

test.each(bodies)('a long text holds up no other request: %s', async (path, body) => {
  // As of a vocabulary that has long tokens: only its tokens say that it is too long.
  jest.spyOn(s.model.bytes, 'longest', 'get').mockReturnValue(Number.POSITIVE_INFINITY);
  let done = false;
  const started = performance.now();
  const long = post(s.url, path, { ...body, max_tokens: 100_000 }).finally(() => {
    done = true;
  });
  let longest = 0;
  while (!done) {
    const before = performance.now();
    await sleep(1);
    longest = Math.max(longest, performance.now() - before);
  }
  const took = performance.now() - started;
  expect((await long).status).toBe(400);
  expect((await long).text).toMatch(/maximum context length is 65536 tokens: the prompt has \d+/);
  expect(took).toBeGreaterThan(300);
  expect(longest / took).toBeLessThan(0.3);
});

test('the ids are those of the tokenizer', async () => {
  const prompt = PIECE.repeat(4_000);
  const messages = [{ role: 'user', content: prompt }];
  expect((await post(s.url, '/v1/completions', { prompt, max_tokens: 4 })).status).toBe(200);
  expect((await post(s.url, '/v1/chat/completions', { messages, max_tokens: 4 })).status).toBe(200);
  const ids = s.engine.requests.map(({ promptIds }) => Array.from(promptIds));
  const { tokenizer } = s.model;
  expect(ids).toEqual([
    Array.from(tokenizer.encode(prompt, true)),
    Array.from(tokenizer.encode(`<user>${prompt}<assistant>`)),
  ]);
});

test('a text of a client that has left is given up', async () => {
  const gone = new AbortController();
  const { texts } = s.model;
  const left = Array.from({ length: 4 }, () => texts.encode(text, false, gone.signal));
  gone.abort();
  for (const one of left) await expect(one).rejects.toBe(gone.signal.reason);
  expect(await texts.encode('hello', false, new AbortController().signal)).toEqual(
    s.model.tokenizer.encode('hello'),
  );
});
