// The data of the examples of agents, and their tokenizers.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Tokenizer } from '../../../ts/data/tokenizer';
import { familyOf } from '../../../ts/serve/tools/families';

interface Row {
  prompt: { content: string }[];
  messages: { role: string; content: string }[];
}
interface Example {
  TOKENIZER: object;
  CALL: { open: string; close: string };
  rowsOf(seed: number, sizes: object): Record<'val' | 'train' | 'sft' | 'corpus', Row[]>;
}

const load = async (path: string): Promise<Example> => await import(`../../../examples/${path}.mjs`);
const sizes = { sft: 200, train: 100, val: 30 };
const directory = mkdtempSync(join(tmpdir(), 'troupe-example-'));
afterAll(() => rmSync(directory, { recursive: true }));

async function tokenizerOf(example: Example): Promise<Tokenizer> {
  const module = '../../../examples/arithmetic/tokenizer.mjs';
  (await import(module)).writeTokenizer(directory, { ...example.TOKENIZER, length: 256 });
  return Tokenizer.load(directory);
}

describe.each(['agent/problems', 'search_r1/facts'])('%s', (path) => {
  test('questions that are held out are in no other set; the same seed draws the same', async () => {
    const example = await load(path);
    const { val, train, sft } = example.rowsOf(1, sizes);
    const held = new Set(val.map(({ prompt }) => prompt[0]?.content));
    expect(held.size).toBe(sizes.val);
    for (const { prompt, messages } of [...train, ...sft])
      expect(held.has((prompt ?? messages)[0]?.content)).toBe(false);
    expect(example.rowsOf(1, sizes).sft).toEqual(sft);
  });

  test('the tokenizer writes all of it and loses nothing', async () => {
    const example = await load(path);
    const tokenizer = await tokenizerOf(example);
    for (const { messages } of example.rowsOf(1, sizes).sft.slice(0, 50)) {
      const text = tokenizer.renderChat(messages, false);
      expect(tokenizer.decode(tokenizer.encode(text), { skipSpecialTokens: false })).toBe(text);
    }
  });
});

test('a call of the calculator is the same text from a demonstration and from the template', async () => {
  const example = await load('agent/problems');
  const tokenizer = await tokenizerOf(example);
  expect(familyOf(tokenizer.toolTemplate)?.name).toBe('hermes');
  const { open, close } = example.CALL;
  const call = { function: { name: 'calculator', arguments: { expression: '12*34' } } };
  const user = { role: 'user', content: '12*34=' };
  const written = tokenizer.renderChat([user, { role: 'assistant', content: '', tool_calls: [call] }], false);
  expect(written).toBe(`12*34=${open}12*34${close}<eos>`);
  expect(tokenizer.encode(`${open}12*34${close}`)).toHaveLength(7);
});
