import { samplesOf } from '../../../ts/data/dataset';
import { SftDataset, type SftDatasetOptions, type SftSample } from '../../../ts/data/sft_dataset';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { TEMPLATE, tokenizerDirectory, writeLines } from './fake_tokenizer';

const tokenizer = Tokenizer.load(tokenizerDirectory());
const decode = (tokens: ArrayLike<number>) => tokenizer.decode(tokens, { skipSpecialTokens: false });

const read = async (
  rows: unknown[],
  options: Partial<SftDatasetOptions> = {},
  using = tokenizer,
): Promise<SftSample[]> => {
  const dataset = await SftDataset.open([writeLines(rows)], using, {
    messagesKey: null,
    promptKey: 'prompt',
    responseKey: 'response',
    toolsKey: 'tools',
    enableThinkingKey: 'enable_thinking',
    maxLength: 200,
    truncation: 'error',
    maxSamples: -1,
    shuffle: false,
    seed: 1,
    ...options,
  });
  const all = await samplesOf(
    dataset,
    Array.from({ length: dataset.length }, (_, i) => i),
  );
  return all.filter((sample) => sample !== null);
};

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

it('an example with images is refused, because the model would not see them', async () => {
  const rows = [{ prompt: 'ab', response: 'cd', images: ['a.png'] }];
  await expect(read(rows)).rejects.toThrow(
    /:1: expected the column 'images' to be empty, got 1: the model reads text only/,
  );
});

it('a pair is refused when nothing names an end token; a conversation is not', async () => {
  const endless = Tokenizer.load(tokenizerDirectory({ eos_token: null, chat_template: TEMPLATE }));
  await expect(read([{ prompt: 'ab', response: 'cd' }], {}, endless)).rejects.toMatchObject({
    code: 'INVALID_MODEL',
    message: expect.stringMatching(/closed with the end token, but nothing in .* names one .*set eos_token/),
  });
  const messages = [turn('user', 'a'), turn('assistant', 'b')];
  const [sample] = await read([{ messages }], { messagesKey: 'messages' }, endless);
  expect(decode(sample!.response)).toBe('b');
});

it('a conversation has its loss on the turns of the assistant', async () => {
  const [sample] = await read([{ messages: conversation }], { messagesKey: 'messages' });
  expect(decode(sample!.prompt)).toBe('<|system|>s<eos><|user|>a<eos><|assistant|>');
  expect(decode(sample!.response)).toBe('b<eos><|user|>c<eos><|assistant|>d<eos>');
  const trained = Array.from(sample!.response).filter((_, t) => sample!.lossMask[t] === 1);
  expect(decode(trained)).toBe('b<eos>d<eos>');
});

it('a conversation whose prompt has no tokens is refused by its row', async () => {
  const bare = Tokenizer.load(
    tokenizerDirectory({ chat_template: "{% for m in messages %}{{ m['content'] }}{% endfor %}" }),
  );
  const rows = ['a', ''].map((asked) => ({ messages: [turn('user', asked), turn('assistant', 'b')] }));
  const options = { messagesKey: 'messages' };
  expect(await read(rows.slice(0, 1), options, bare)).toHaveLength(1);
  await expect(read(rows, options, bare)).rejects.toMatchObject({
    code: 'INVALID_DATA',
    message: expect.stringMatching(/:2: the prompt is empty/),
  });
});

// Written after the shapes that are in use: a default system prompt, roles that must alternate, text trimmed, brackets instead
// of role names, reasoning that is shown in the last turn only. None has markers of what the assistant writes.
const CHATML =
  "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nbe brief<|im_end|>\n{% endif %}" +
  "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}" +
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';
const LLAMA_LIKE =
  "{{ bos_token }}{% for m in messages %}<|start|>{{ m['role'] }}<|end|>\n\n{{ m['content'] | trim }}<|eot|>{% endfor %}" +
  '{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}';
const ALTERNATING =
  "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n' %}{% set rest = messages[1:] %}" +
  "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}" +
  "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}" +
  "{% if m['role'] == 'user' %}<inst>{{ system if loop.first else '' }}{{ m['content'] }}</inst>" +
  "{% else %}{{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}" +
  "{% if rest | length == 0 %}{{ raise_exception('no user') }}{% endif %}";
const LAST_REASONING =
  "{% for m in messages %}<|{{ m['role'] }}|>{% if loop.last %}{{ m['content'] }}{% else %}" +
  "{{ m['content'].split('</think>') | last }}{% endif %}{{ eos_token }}{% endfor %}" +
  '{% if add_generation_prompt %}<|assistant|>{% endif %}';

const withTemplate = (chat_template: string) => Tokenizer.load(tokenizerDirectory({ chat_template }));
/** Text before the first assistant's turn, and all pieces with loss and without. */
async function pieces(
  template: string,
  messages: unknown,
  options: Partial<SftDatasetOptions> = {},
  row = {},
) {
  const all = { messagesKey: 'messages', ...options };
  const [sample] = await read([{ messages, ...row }], all, withTemplate(template));
  const runs: { trained: number; tokens: number[] }[] = [];
  sample!.response.forEach((token, t) => {
    const trained = sample!.lossMask[t] as number;
    if (runs.at(-1)?.trained !== trained) runs.push({ trained, tokens: [] });
    runs.at(-1)!.tokens.push(token);
  });
  return [decode(sample!.prompt), ...runs.map(({ trained, tokens }) => `${trained}:${decode(tokens)}`)];
}

describe('templates without markers', () => {
  it('ChatML with a default system prompt', async () => {
    const [, ...dialogue] = conversation;
    expect(await pieces(CHATML, dialogue)).toEqual([
      '<|im<unk>start|>system\nbe brief<|im<unk>end|>\n<|im<unk>start|>user\na<|im<unk>end|>\n<|im<unk>start|>assistant\n',
      '1:b<|im<unk>end|>\n',
      '0:<|im<unk>start|>user\nc<|im<unk>end|>\n<|im<unk>start|>assistant\n',
      '1:d<|im<unk>end|>\n',
    ]);
  });

  it('with a header and end marks', async () => {
    expect(await pieces(LLAMA_LIKE, conversation)).toEqual([
      '<bos><|start|>system<|end|>\n\ns<|eot|><|start|>user<|end|>\n\na<|eot|><|start|>assistant<|end|>\n\n',
      '1:b<|eot|>',
      '0:<|start|>user<|end|>\n\nc<|eot|><|start|>assistant<|end|>\n\n',
      '1:d<|eot|>',
    ]);
  });

  it('with roles that must alternate, and no generation prompt', async () => {
    expect(await pieces(ALTERNATING, conversation)).toEqual([
      '<bos><inst>s\na</inst>',
      '1:b<eos>',
      '0:<inst>c</inst>',
      '1:d<eos>',
    ]);
  });

  it('two turns of the assistant in a row: the opening of the second has no loss', async () => {
    const messages = [turn('user', 'a'), turn('assistant', 'b'), turn('assistant', 'c'), turn('tool', '5')];
    expect(await pieces(LLAMA_LIKE, messages)).toEqual([
      '<bos><|start|>user<|end|>\n\na<|eot|><|start|>assistant<|end|>\n\n',
      '1:b<|eot|>',
      '0:<|start|>assistant<|end|>\n\n',
      '1:c<|eot|>',
      '0:<|start|>tool<|end|>\n\n5<|eot|>',
    ]);
  });

  it('that rewrite earlier turns are refused, with what they change', async () => {
    const messages = [
      turn('user', 'a'),
      turn('assistant', '<think>w</think>b'),
      turn('user', 'c'),
      turn('assistant', 'd'),
    ];
    const refused = pieces(LAST_REASONING, messages);
    await expect(refused).rejects.toMatchObject({
      code: 'INVALID_DATA',
      message: expect.stringMatching(
        /:1: the chat template rewrites earlier turns when turn 2 is added \(".*<think>w.*" becomes ".*b<eos>.*model\.custom_chat_template/,
      ),
    });
    // One turn of the assistant is not rewritten.
    expect(await pieces(LAST_REASONING, messages.slice(0, 2))).toEqual([
      '<|user|>a<eos><|assistant|>',
      '1:<think>w</think>b<eos>',
    ]);
  });

  it('see the tools and the reasoning switch of the row', async () => {
    const template =
      "{% if tools %}<tools>{% for t in tools %}{{ t['name'] }} {% endfor %}{% endif %}{% if enable_thinking %}/think{% endif %}" +
      TEMPLATE;
    const messages = [turn('user', 'a'), turn('assistant', 'b')];
    const prompt = async (row: object, options = {}) => (await pieces(template, messages, options, row))[0];
    expect(await prompt({})).toBe('<|user|>a<eos><|assistant|>');
    const tools = [{ name: 'x' }, { name: 'y' }];
    expect(await prompt({ tools, enable_thinking: true })).toBe(
      '<tools>x y /think<|user|>a<eos><|assistant|>',
    );
    expect(await prompt({ tools: JSON.stringify(tools) })).toBe('<tools>x y <|user|>a<eos><|assistant|>');
    expect(await prompt({ tools, enable_thinking: true }, { toolsKey: null, enableThinkingKey: null })).toBe(
      '<|user|>a<eos><|assistant|>',
    );
    await expect(prompt({ tools: 'search' })).rejects.toThrow(
      /expected the tools to be a list of schemas.*"search"/,
    );
  });
});

it.each([
  [{ prompt: 'a' }, {}, /:1: no column 'response'/],
  [{ prompt: 'a', response: 3 }, {}, /expected the response to be a string, got 3/],
  [{ messages: 'x' }, { messagesKey: 'messages' }, /expected a list of \{role, content\}, got "x"/],
  [{ messages: [turn('user', 'a')] }, { messagesKey: 'messages' }, /expected an assistant turn/],
  [
    { messages: [turn('user', 'a'), { role: 'assistant', content: null }] },
    { messagesKey: 'messages' },
    /expected a list of \{role, content\}/,
  ],
])('bad row %j', async (row, options, message) => {
  await expect(read([row], options)).rejects.toThrow(message);
});

it('an example that teaches nothing is an error', async () => {
  const bare = withTemplate('{% for m in messages %}{{ m.content }}{% endfor %}');
  const messages = [turn('user', 'a'), turn('assistant', '')];
  await expect(read([{ messages }], { messagesKey: 'messages' }, bare)).rejects.toThrow(
    /:1: expected a response to learn, but all of them are empty/,
  );
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

  it('may lose the whole prompt: the first token left is what the others are predicted from', async () => {
    const [left] = await read(rows, { maxLength: 3, truncation: 'left' });
    expect([decode(left!.prompt), decode(left!.response), left!.lossMask.length]).toEqual(['g', 'h<eos>', 2]);
  });

  it('that would keep no token with a loss is an error', async () => {
    await expect(read(rows, { maxLength: 5, truncation: 'right' })).rejects.toThrow(
      /the example has 10 tokens \(prompt 5\), and data\.truncation=right to data\.max_length 5 leaves none with a loss/,
    );
    const messages = [turn('user', 'a'), turn('assistant', 'b'), turn('user', 'ccc')];
    await expect(
      read([{ messages }], { messagesKey: 'messages', maxLength: 4, truncation: 'left' }),
    ).rejects.toThrow(/leaves none with a loss/);
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

it('the texts of a pair may lie inside of their columns', async () => {
  const row = { extra: { asked: [{ question: 'ab' }], answer: 'cd' } };
  const options = { promptKey: 'extra', responseKey: 'extra' };
  const keys = { promptDictKeys: ['asked', 'question'], responseDictKeys: ['answer'] };
  const [sample] = await read([row], { ...options, ...keys });
  expect([decode(sample!.prompt), decode(sample!.response)]).toEqual(['<bos>ab', 'cd<eos>']);
  await expect(read([row], { ...options, ...keys, promptDictKeys: ['asked', 'text'] })).rejects.toThrow(
    /:1: expected 'extra.asked' to have a key 'text', got /,
  );
});

it('a prompt of text may be rendered as a turn of the user', async () => {
  const using = Tokenizer.load(tokenizerDirectory({ chat_template: TEMPLATE }));
  const conversation = [{ role: 'user', content: 'ab' }];
  const [asText] = await read([{ prompt: 'ab', response: 'cd' }], { applyChatTemplate: true }, using);
  const [asTurns] = await read([{ prompt: conversation, response: 'cd' }], {}, using);
  const [plain] = await read([{ prompt: 'ab', response: 'cd' }], {}, using);
  expect(asText).toEqual(asTurns);
  expect(asText!.prompt).not.toEqual(plain!.prompt);
});
