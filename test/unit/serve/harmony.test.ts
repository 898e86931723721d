import { readFileSync } from 'node:fs';
import path from 'node:path';
import { endTokenIds } from '../../../ts/data/end_tokens';
import { conversationText, replyMessage } from '../../../ts/serve/call/conversation';
import { familyOf, responseReading, toolFamily } from '../../../ts/serve/tools/families';
import { HARMONY_TAGS } from '../../../ts/serve/tools/harmony';
import type { ToolParser } from '../../../ts/serve/tools/tool_parser';
import { HARMONY_TEMPLATE } from '../../helpers/harmony_template';
import { chatTokenizer } from '../agent/chat_world';
import { FINAL, family, read, TOOLS } from './harmony_calls';

// What openai-harmony reads in responses of gpt-oss (make_cases.py).
const recorded = JSON.parse(
  readFileSync(path.join(__dirname, '../../fixtures/harmony/cases.json'), 'utf8'),
) as {
  ends: string[];
  cases: { response: string; messages: { channel: string; recipient: string | null; text: string }[] }[];
};

const reading = (): ToolParser => family.parser(TOOLS);

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
