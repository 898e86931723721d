import { readSftDataset, type SftDatasetOptions } from '../../../ts/data/sft_dataset';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { tokenizerDirectory, writeLines } from './fake_tokenizer';

const tokenizer = Tokenizer.load(tokenizerDirectory());
const decode = (tokens: ArrayLike<number>) => tokenizer.decode(tokens, { skipSpecialTokens: false });

const read = (rows: unknown[], options: Partial<SftDatasetOptions> = {}, using = tokenizer) =>
  readSftDataset([writeLines(rows)], using, {
    messagesKey: null,
    promptKey: 'prompt',
    responseKey: 'response',
    maxLength: 200,
    truncation: 'error',
    maxSamples: -1,
    shuffle: false,
    seed: 1,
    ...options,
  });

const turn = (role: string, content: string) => ({ role, content });
const conversation = [
  turn('system', 's'),
  turn('user', 'a'),
  turn('assistant', 'b'),
  turn('user', 'c'),
  turn('assistant', 'd'),
];

it('a pair has its loss on the response and the end token', async () => {
  const [sample] = await read([{ prompt: 'ab', response: 'cd' }]);
  expect(decode(sample!.prompt)).toBe('<bos>ab');
  expect(decode(sample!.response)).toBe('cd<eos>');
  expect(Array.from(sample!.lossMask)).toEqual([1, 1, 1]);
});

it('a conversation has its loss on the turns of the assistant', async () => {
  const [sample] = await read([{ messages: conversation }], { messagesKey: 'messages' });
  expect(decode(sample!.prompt)).toBe('<|system|>s<eos><|user|>a<eos><|assistant|>');
  expect(decode(sample!.response)).toBe('b<eos><|user|>c<eos><|assistant|>d<eos>');
  const trained = Array.from(sample!.response).filter((_, t) => sample!.lossMask[t] === 1);
  expect(decode(trained)).toBe('b<eos>d<eos>');
});

it('a template that rewrites earlier turns is refused', async () => {
  const template = "{% for m in messages %}{{ loop.length }}{{ m['content'] }}{% endfor %}";
  const other = Tokenizer.load(tokenizerDirectory({ chat_template: template }));
  await expect(read([{ messages: conversation }], { messagesKey: 'messages' }, other)).rejects.toThrow(
    /the chat template rewrites earlier turns when turn \d is added/,
  );
});

it.each([
  [{ prompt: 'a' }, {}, /:1: no column 'response'/],
  [{ prompt: 'a', response: 3 }, {}, /expected the response to be a string, got 3/],
  [{ messages: 'x' }, { messagesKey: 'messages' }, /expected a list of \{role, content\}, got "x"/],
  [{ messages: [turn('user', 'a')] }, { messagesKey: 'messages' }, /expected an assistant turn/],
])('bad row %j', async (row, options, message) => {
  await expect(read([row], options)).rejects.toThrow(message);
});

it('no rows are an error', async () => {
  await expect(read([])).rejects.toThrow(/the data set is empty/);
});

describe('a long example', () => {
  const rows = [{ prompt: 'abcd', response: 'efgh' }];

  it('is an error that names the row', async () => {
    await expect(read(rows, { maxLength: 8 })).rejects.toThrow(
      /:1: the example has 10 tokens \(prompt 5\), more than data\.max_length 8/,
    );
  });

  it('loses the start of the prompt or the end of the response', async () => {
    const [left] = await read(rows, { maxLength: 8, truncation: 'left' });
    expect([decode(left!.prompt), decode(left!.response)]).toEqual(['bcd', 'efgh<eos>']);
    const [right] = await read(rows, { maxLength: 8, truncation: 'right' });
    expect([decode(right!.prompt), decode(right!.response)]).toEqual(['<bos>abcd', 'efg']);
    expect(right!.lossMask).toHaveLength(3);
  });
});

it('at most maxSamples are read', async () => {
  const rows = [...'abcdef'].map((prompt) => ({ prompt, response: 'x' }));
  expect((await read(rows, { maxSamples: 2 })).map(({ prompt }) => decode(prompt))).toEqual([
    '<bos>a',
    '<bos>b',
  ]);
  expect(await read(rows, { maxSamples: 2, shuffle: true })).toHaveLength(2);
});
