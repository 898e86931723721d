// Responses in whatever pieces they come: what is read of one does not depend on where it is cut.
import { setImmediate as turn } from 'node:timers/promises';
import { TOOL_FAMILIES, type ToolFamilyName } from '../../../ts/base/tool_formats';
import { callsOrText } from '../../../ts/serve/tools/calls_or_text';
import { callReading, toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector, type ParsedText, type ToolParser } from '../../../ts/serve/tools/tool_parser';
import { TOOLS } from './tag_writing';

const GAPS = ['\n'.repeat(70), ' '.repeat(300), ';'.repeat(1100), ' '.repeat(1200), 'x'.repeat(300)];
const COMMON = [
  ...[
    ' ',
    '\n',
    '\n\n',
    '\t',
    'f',
    'time',
    'text',
    '{',
    '}',
    '{}',
    '{"a": 1}',
    '{"a": "b}\\""}',
    '[',
    ']',
    '"',
  ],
  ...['1', 'null', '</', '<', 'hello', '\u{1f44d}', '\u00e4', '```', ';', ',', 'a b', '\\', ...GAPS],
];
const SEED_PARTS = [
  '<parameter=text>',
  '<parameter=count>',
  '<parameter=',
  '</parameter>',
  '</function>',
  '>',
];
const deepseek = (call: string): string[] => [
  ...['<｜tool▁calls▁begin｜>', '<｜tool▁calls▁end｜>', '<｜tool▁call▁begin｜>', '<｜tool▁call▁end｜>'],
  ...[
    '<｜tool▁sep｜>',
    `<｜tool▁call▁begin｜>${call}`,
    `<｜tool▁call▁begin｜>${call}{"a": 1}<｜tool▁call▁end｜>`,
  ],
];

const PYTHONIC = [
  ...['f(', 'f()', 'f(a=1)', ')', 'a=', "'", "'''", '"b\\""', "f(a='it\\'s', b=[1, {\"c\": None}])"],
  '{"name": "f", "arguments": {"a": 1}}',
];

/** What responses of a family are made of. */
const PARTS: Record<ToolFamilyName, string[]> = {
  hermes: [
    ...[
      '<tool_call>',
      '</tool_call>',
      '<tool_call>\n{"name": "f", "arguments": ',
      '{"name": "time"}',
      '"name"',
    ],
    '<tool_call>{"name": "f", "arguments": {"a": 1}}',
  ],
  qwen3_coder: ['<tool_call>', '</tool_call>', '<function=f>', '<function=', ...SEED_PARTS],
  glm45: [
    ...[
      '<tool_call>',
      '</tool_call>',
      '<arg_key>',
      '</arg_key>',
      '<arg_value>',
      '</arg_value>',
      '<tool_call>f\n',
    ],
    ...['<arg_key>text</arg_key>', '<arg_key>count</arg_key>\n<arg_value>'],
  ],
  minimax_m2: [
    ...[
      '<minimax:tool_call>',
      '</minimax:tool_call>',
      '<invoke name="f">',
      '<invoke name="',
      '</invoke>',
      '">',
    ],
    ...['<parameter name="text">', '<parameter name="count">', '<parameter name="', '</parameter>'],
  ],
  seed_oss: ['<seed:tool_call>', '</seed:tool_call>', '<function=f>', '<function=', ...SEED_PARTS],
  deepseek_v3: deepseek('function<｜tool▁sep｜>f\n```json\n'),
  deepseek_v31: deepseek('f<｜tool▁sep｜>'),
  kimi_k2: [
    ...[
      '<|tool_calls_section_begin|>',
      '<|tool_calls_section_end|>',
      '<|tool_call_begin|>',
      '<|tool_call_end|>',
    ],
    ...['<|tool_call_argument_begin|>', 'functions.f:0', ':'],
    '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>',
  ],
  llama3: ['<|python_tag|>', '{"name": "f", "parameters": ', '{"name": "f", "parameters": {"a": 1}}', '; '],
  mistral: [
    ...['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]', '[TOOL_CALLS]f[ARGS]', '[TOOL_CALLS] [', '[TOOL_'],
    '{"name": "f", "arguments": {}}',
  ],
  lfm2: [
    ...[
      '<|tool_call_start|>',
      '<|tool_call_end|>',
      '<|tool_call_start|>[',
      ']<|tool_call_end|>',
      "<|tool_call_start|>[f(a='x'), time()]<|tool_call_end|>",
    ],
    ...PYTHONIC,
  ],
  olmo3: [
    ...[
      '<function_calls>',
      '</function_calls>',
      '<function_calls>f(a="x")\ntime()</function_calls>',
      '\n</function_calls>',
    ],
    ...PYTHONIC,
  ],
  gemma4: [
    ...[
      '<|tool_call>',
      '<tool_call|>',
      '<|tool_call>call:f{',
      '}<tool_call|>',
      '<|"|>',
      '<|"|>a, b}<|"|>',
      'call:',
    ],
    ...[
      '<|tool_call>call:f{a:<|"|>',
      'a:',
      '{b:[1,true]}',
      '<|',
      'c:{',
      '[',
      ',',
      '<|channel>',
      '<channel|>',
    ],
    '<|tool_call>call:time{}<tool_call|>',
  ],
  'gpt-oss': [
    ...[
      '<|channel|>',
      '<|message|>',
      '<|constrain|>',
      '<|call|>',
      '<|start|>',
      '<|end|>',
      '<|return|>',
      'to=',
    ],
    ...['analysis', 'final', 'assistant', '<|channel|>final<|message|>', '<|channel|>analysis<|message|>'],
    '<|channel|>commentary to=functions.f<|message|>',
  ],
};

/** Numbers below 1, the same each time (mulberry32). */
function drawn(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

function read(parser: ToolParser, pieces: readonly string[], cut: boolean) {
  const collector = new CallCollector();
  let [text, reasoning] = ['', ''];
  const take = (parsed: ParsedText): void => {
    text += parsed.text;
    reasoning += parsed.reasoning ?? '';
    collector.add(parsed.calls);
  };
  for (const piece of pieces) take(parser.push(piece));
  take(parser.end(cut));
  return { text, reasoning, calls: collector.calls.map(({ name, arguments: source }) => [name, source]) };
}

const solid = (text: string): string => text.replace(/\s/g, '');

test.each(TOOL_FAMILIES)(
  '%s: what is read is the same however it is cut, and no call loses no text',
  (name) => {
    const draw = drawn(1);
    const below = (count: number): number => Math.floor(draw() * count);
    const part = (parts: readonly string[]): string => parts[below(parts.length)] as string;
    const family = toolFamily(name);
    const parsers = [callReading, callsOrText].flatMap((read) => {
      const { parser } = read(family, TOOLS);
      return family.thoughts === undefined ? [parser] : [parser, () => parser(true)];
    });
    for (let round = 0; round < 1500; round++) {
      const parts = Array.from({ length: 1 + below(10) }, () => part(draw() < 0.65 ? PARTS[name] : COMMON));
      const response = parts.join('');
      const pieces: string[] = [];
      for (let at = 0; at < response.length; at += (pieces.at(-1) as string).length)
        pieces.push(response.slice(at, at + 1 + below(round % 2 === 0 ? 3 : 30)));
      const parser = parsers[below(parsers.length)] as () => ToolParser;
      const cut = draw() < 0.5;
      const whole = read(parser(), [response], cut);
      expect([response, read(parser(), pieces, cut)]).toEqual([response, whole]);
      if (whole.calls.length > 0 || name === 'gpt-oss') continue;
      // Its tags are no part of a thought, and neither is a line break before the last one.
      const thought = family.thoughts !== undefined && (whole.reasoning !== '' || /channel/.test(response));
      if (!thought) expect(solid(whole.text)).toBe(solid(response));
    }
  },
);

const [OPEN, CALL, END] = ['<｜tool▁calls▁begin｜>', '<｜tool▁call▁begin｜>', '<｜tool▁call▁end｜>'];

test.each([1, 5, 1000])('a call that is none hides no call behind it, in pieces of %d', (size) => {
  const inPieces = (name: ToolFamilyName, response: string) => {
    const pieces = Array.from({ length: Math.ceil(response.length / size) }, (_, i) =>
      response.slice(i * size, (i + 1) * size),
    );
    return read(toolFamily(name).parser(TOOLS), pieces, false);
  };
  const one = `${CALL}f<｜tool▁sep｜>{"a": 1}${END}`;
  const call = ['f', '{"a": 1}'];
  for (const [before, text] of [
    [`${CALL}no call${END}`, `${CALL}no call${END}`],
    [`${CALL}no call`, `${CALL}no call`],
    [`${OPEN}${CALL}${'no call '.repeat(300)}`, `${OPEN}${CALL}${'no call '.repeat(300)}`],
  ])
    expect(inPieces('deepseek_v31', before + one)).toEqual({ text, reasoning: '', calls: [call] });
  // Behind a call that is one its tag is text, too.
  expect(inPieces('deepseek_v31', `${OPEN}${one}${CALL}no call${END}`)).toEqual({
    text: `${CALL}no call${END}`,
    reasoning: '',
    calls: [call],
  });
  expect(
    inPieces('minimax_m2', '<minimax:tool_call><invoke name="f"></invoke><invoke name="no call'),
  ).toEqual({
    text: '<invoke name="no call',
    reasoning: '',
    calls: [['f', '{}']],
  });
});

const BEHIND: [ToolFamilyName, string, string][] = [
  ['hermes', '<tool_call>{"name": "f", "arguments": {}}', '\n'],
  ['hermes', '<tool_call>{"name": "f", "arguments": {}}</tool_call>', '\n'],
  ['seed_oss', '<seed:tool_call>', '\n'],
  ['minimax_m2', '<minimax:tool_call><invoke name="f"></invoke>', ' '],
  ['deepseek_v31', `${OPEN}${CALL}f<｜tool▁sep｜>{}`, '\n'],
  ['deepseek_v31', `${OPEN}${CALL}f<｜tool▁sep｜>{}${END}<｜tool▁calls▁end｜>`, '\n'],
  ['llama3', '', ';'],
  ['llama3', '{"name": "f", "parameters": {}}', '\n'],
  ['mistral', '[TOOL_CALLS]', '\n'],
  ['mistral', '[TOOL_CALLS]', 'a'],
  ['mistral', '[TOOL_CALLS] [', ','],
  ['gemma4', '<|tool_call>call:f{a:<|"|>', 'x'],
  ['gemma4', '<|tool_call>call:f{a:[', ' '],
  ['gemma4', '<|tool_call>call:f{}<tool_call|>', '\n'],
  ['gpt-oss', '', '\n'],
  ['gpt-oss', '<|channel|>commentary to=functions.f<|message|>', ' '],
];

// Read again with each character they take minutes.
test.each(BEHIND)(
  '%s: behind %j any number of %j is read once',
  async (name, before, repeated) => {
    const parser = toolFamily(name).parser(TOOLS);
    let read = '';
    const take = ({ text, calls }: ParsedText): void => {
      read += text + calls.map((call) => call.arguments).join('');
    };
    take(parser.push(before));
    for (let i = 0; i < 200_000; i++) {
      take(parser.push(repeated));
      if (i % 10_000 === 0) await turn();
    }
    take(parser.push('so'));
    take(parser.end());
    expect(read.endsWith('so')).toBe(true);
  },
  20_000,
);
