import { events, type Json, post, type Served, served } from './served';

const opened: Served[] = [];
const serve = async (...args: Parameters<typeof served>): Promise<Served> => {
  const one = await served(...args);
  opened.push(one);
  return one;
};
afterEach(async () => {
  for (const one of opened.splice(0)) await one.close();
});

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
