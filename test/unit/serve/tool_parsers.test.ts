import { setImmediate as turn } from 'node:timers/promises';
import { familyOf, familyOfFormat, toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector, type ToolCall } from '../../../ts/serve/tools/tool_parser';
import { GEMMA4_CASES } from './gemma4_cases';

type Family = Parameters<typeof toolFamily>[0];

/** Read in pieces of this many characters. */
function read(family: Family, response: string, size: number) {
  const parser = toolFamily(family).parser([]);
  const collector = new CallCollector();
  let text = '';
  let last = 0;
  const take = (parsed: { text: string; calls: Parameters<CallCollector['add']>[0] }): void => {
    text += parsed.text;
    // Nothing more of a call once another one has begun.
    for (const { index } of parsed.calls) {
      expect(index).toBeGreaterThanOrEqual(last);
      last = index;
    }
    collector.add(parsed.calls);
  };
  for (let at = 0; at < response.length; at += size) take(parser.push(response.slice(at, at + size)));
  take(parser.end());
  return { text, calls: collector.calls };
}

const nameAndArguments = (calls: readonly ToolCall[]): [string, unknown][] =>
  calls.map(({ name, arguments: source }) => [name, JSON.parse(source)]);

const weather: [string, unknown] = ['get_weather', { city: 'Pa"ris}', days: [1, { n: -2.5e3 }] }];
const args = JSON.stringify(weather[1]);
const time: [string, unknown] = ['time', {}];

/** Families whose calls stand in a section: how they write one, and what is around all of them. */
const SECTIONED: [Family, (name: string, source: string, i: number) => string, string, string][] = [
  [
    'deepseek_v3',
    (name, source) =>
      `<｜tool▁call▁begin｜>function<｜tool▁sep｜>${name}\n\`\`\`json\n${source}\n\`\`\`<｜tool▁call▁end｜>`,
    '<｜tool▁calls▁begin｜>',
    '<｜tool▁calls▁end｜>',
  ],
  [
    'deepseek_v31',
    (name, source) => `<｜tool▁call▁begin｜>${name}<｜tool▁sep｜>${source}<｜tool▁call▁end｜>`,
    '<｜tool▁calls▁begin｜>',
    '<｜tool▁calls▁end｜>',
  ],
  [
    'kimi_k2',
    (name, source, i) =>
      `<|tool_call_begin|>functions.${name}:${i}<|tool_call_argument_begin|>${source}<|tool_call_end|>`,
    '<|tool_calls_section_begin|>',
    '<|tool_calls_section_end|>',
  ],
];

const CASES: [Family, string, string, string, [string, unknown][]][] = [
  [
    'lfm2',
    'one call',
    `<|tool_call_start|>[get_weather(city='Pa"ris}', days=[1, {"n": -2.5e3}])]<|tool_call_end|>`,
    '',
    [weather],
  ],
  [
    'lfm2',
    'two calls after text',
    `Let me see.<|tool_call_start|>[get_weather(city="Pa\\"ris}",days=(1,{'n':-2.5e3},)), time( )]<|tool_call_end|> Well.`,
    'Let me see. Well.',
    [weather, time],
  ],
  [
    'lfm2',
    'calls in JSON',
    `<|tool_call_start|>[{"name": "get_weather", "arguments": ${args}}, {"name": "time"}]<|tool_call_end|>`,
    '',
    [weather, time],
  ],
  [
    'lfm2',
    'lists behind each other, one of them without brackets',
    `<|tool_call_start|>[time()]<|tool_call_end|>\n<|tool_call_start|>time()<|tool_call_end|>`,
    '',
    [time, time],
  ],
  [
    'lfm2',
    'a quotation mark that is missing, before a call',
    `<|tool_call_start|>[f(a='it's')]<|tool_call_end|><|tool_call_start|>[time()]<|tool_call_end|>`,
    `<|tool_call_start|>[f(a='it's')]<|tool_call_end|>`,
    [time],
  ],
  [
    'olmo3',
    'calls on lines of their own',
    'Hm.<function_calls>\nget_weather(city="Pa\\"ris}", days=[1, {"n": -2.5e3}])\ntime()\n</function_calls>',
    'Hm.',
    [weather, time],
  ],
  ...GEMMA4_CASES,
  [
    'lfm2',
    'what is no call',
    '<|tool_call_start|>[f(1)]<|tool_call_end|> <|tool_call_start|>[f(a=b)]<|tool_call_end|> <|tool_call_start|>[]',
    '<|tool_call_start|>[f(1)]<|tool_call_end|> <|tool_call_start|>[f(a=b)]<|tool_call_end|> <|tool_call_start|>[]',
    [],
  ],
  [
    'hermes',
    'one call',
    `<tool_call>\n{"name": "get_weather", "arguments": ${args}}\n</tool_call>`,
    '',
    [weather],
  ],
  [
    'hermes',
    'two calls after text',
    `Let me see.<tool_call>{"name":"get_weather","arguments":${args}}</tool_call>\n<tool_call>\n{"arguments": {}, "name": "time"}\n</tool_call>`,
    'Let me see.',
    [weather, time],
  ],
  ['hermes', 'no arguments', '<tool_call>{"name": "time"}</tool_call>', '', [time]],
  [
    'hermes',
    'arguments as text',
    `<tool_call>{"name": "get_weather", "arguments": ${JSON.stringify(args)}}</tool_call>`,
    '',
    [weather],
  ],
  ['hermes', 'no JSON', '<tool_call>time()</tool_call> then', '<tool_call>time()</tool_call> then', []],
  ['hermes', 'no name', 'a<tool_call>{"x": 1}</tool_call>', 'a<tool_call>{"x": 1}</tool_call>', []],
  ['hermes', 'text alone', 'a < b <tool', 'a < b <tool', []],
  ['hermes', 'a missing end', `<tool_call>{"name": "get_weather", "arguments": ${args}}`, '', [weather]],
  [
    'hermes',
    'text after',
    `<tool_call>{"name": "get_weather", "arguments": ${args}}</tool_call> done`,
    ' done',
    [weather],
  ],
  ['llama3', 'one call', `{"name": "get_weather", "parameters": ${args}}`, '', [weather]],
  ['llama3', 'tagged', `<|python_tag|>{"name": "get_weather", "parameters": ${args}}`, '', [weather]],
  [
    'llama3',
    'two calls',
    `{"name": "get_weather", "parameters": ${args}}; {"name": "time", "parameters": {}}`,
    '',
    [weather, time],
  ],
  [
    'llama3',
    'a tag before each call',
    `<|python_tag|>{"name": "get_weather", "parameters": ${args}}; <|python_tag|>{"name": "time", "parameters": {}}`,
    '',
    [weather, time],
  ],
  ['llama3', 'an answer in JSON', '{"name": "Anna", "age": 7}', '{"name": "Anna", "age": 7}', []],
  ['llama3', 'text alone', 'The {"name"} is', 'The {"name"} is', []],
  ['llama3', 'code', '<|python_tag|>print(1)', '<|python_tag|>print(1)', []],
  [
    'mistral',
    'a list',
    `[TOOL_CALLS] [{"name": "get_weather", "arguments": ${args}}, {"name": "time", "arguments": {}}]`,
    '',
    [weather, time],
  ],
  [
    'mistral',
    'names',
    `Hm.[TOOL_CALLS]get_weather[ARGS]${args}[TOOL_CALLS]time[CALL_ID]abc[ARGS]{}`,
    'Hm.',
    [weather, time],
  ],
  ['mistral', 'an odd name', `[TOOL_CALLS]files/l\u00e4s[ARGS]${args}`, '', [['files/l\u00e4s', weather[1]]]],
  [
    'hermes',
    'an odd name',
    `<tool_call>{"name": "files/l\\u00e4s", "arguments": ${args}}</tool_call>`,
    '',
    [['files/l\u00e4s', weather[1]]],
  ],
  [
    'llama3',
    'an odd name',
    `{"name": "files/l\u00e4s", "parameters": ${args}}`,
    '',
    [['files/l\u00e4s', weather[1]]],
  ],
  [
    'mistral',
    'prose before the arguments',
    '[TOOL_CALLS]no call [ARGS]{}',
    '[TOOL_CALLS]no call [ARGS]{}',
    [],
  ],
  ['mistral', 'text alone', 'see [TOOL', 'see [TOOL', []],
  ['mistral', 'no call', '[TOOL_CALLS] \nnothing', '[TOOL_CALLS] \nnothing', []],
  ['mistral', 'an empty beginning of a list', '[TOOL_CALLS] [ , 1', '[TOOL_CALLS] [ , 1', []],
  ['mistral', 'a list of nothing', '[TOOL_CALLS][] then', '[TOOL_CALLS][] then', []],
  ['mistral', 'a list of something else', '[TOOL_CALLS][1, 2]', '[TOOL_CALLS][1, 2]', []],
  ...SECTIONED.flatMap(([family, call, open, close]): typeof CASES => {
    const [one, two] = [call('get_weather', args, 0), call('time', '{}', 1)];
    return [
      [family, 'one call', `${open}${one}${close}`, '', [weather]],
      [
        family,
        'two calls after text',
        `Let me see.${open}${one}\n${two}${close}`,
        'Let me see.',
        [weather, time],
      ],
      [family, 'two sections', `${open}${one}${close}\n${open}${two}${close}`, '', [weather, time]],
      [family, 'no arguments', `${open}${call('time', 'null', 0)}${close}`, '', [time]],
      [family, 'text after', `${open}${one}${close} done`, ' done', [weather]],
      [family, 'a missing end', `${open}${one}`, '', [weather]],
      [family, 'no section', `Hm.${one}${two}`, 'Hm.', [weather, time]],
      [
        family,
        'an odd name',
        `${open}${call('files/l\u00e4s', args, 3)}${close}`,
        '',
        [['files/l\u00e4s', weather[1]]],
      ],
      ...[
        'text alone <',
        `${open} nothing`,
        `${open}${close} then`,
        `${open}${call('f', '3', 0)}${close}`,
      ].map((text): (typeof CASES)[number] => [family, `no call: ${text.slice(0, 60)}`, text, text, []]),
    ];
  }),
];

test.each(CASES)('%s: %s', (family, _, response, text, calls) => {
  for (const size of [1, 2, 3, 7, response.length]) {
    const parsed = read(family, response, size);
    expect([size, parsed.text, nameAndArguments(parsed.calls)]).toEqual([size, text, calls]);
  }
});

test('a call whose arguments are no JSON does not hide the next one, in whatever pieces they come', () => {
  const response = `<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>then<tool_call>{"name": "time"}</tool_call>`;
  for (const size of [1, 2, 3, 7, response.length]) {
    const { text, calls } = read('hermes', response, size);
    const sources = calls.map(({ name, arguments: source }) => [name, source]);
    expect([size, text, sources]).toEqual([
      size,
      'then',
      [
        ['f', '{"a": NaN}'],
        ['time', '{}'],
      ],
    ]);
  }
});

test.each(CASES)('%s: %s, cut off anywhere: what has not begun as a call is text', (family, _, response) => {
  const solid = (text: string): string => text.replace(/\s/g, '');
  for (let end = 0; end < response.length; end++) {
    const cut = response.slice(0, end);
    const { text, calls } = read(family, cut, 3);
    if (calls.length === 0) expect(solid(text)).toBe(solid(cut));
  }
});

// Read again with each character they take minutes.
test.each(['hermes', 'llama3', 'mistral', 'deepseek_v3', 'deepseek_v31'] as const)(
  '%s: arguments of any length are read once',
  async (family) => {
    const { begin, end } = toolFamily(family).frame('f');
    const written = JSON.stringify({ text: 'x'.repeat(500_000) });
    const response = begin + written + end;
    const parser = toolFamily(family).parser([]);
    const collector = new CallCollector();
    for (let at = 0; at < response.length; at += 4) {
      collector.add(parser.push(response.slice(at, at + 4)).calls);
      if (at % 10_000 === 0) await turn();
    }
    expect(collector.calls.map((call) => call.arguments === written)).toEqual([true]);
  },
  20_000,
);

test('arguments come while they are written', () => {
  const parser = toolFamily('hermes').parser([]);
  expect(parser.push('<tool_call>{"name": "f", "arguments": {"a": "bc').calls).toEqual([
    { index: 0, id: expect.stringMatching(/^call_\w{24}$/), name: 'f', arguments: '' },
    { index: 0, arguments: '{"a": "bc' },
  ]);
  expect(parser.push('d').calls).toEqual([{ index: 0, arguments: 'd' }]);
});

test('ids of calls are what the template of Mistral accepts', () => {
  const { calls } = read('mistral', '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', 4);
  expect(calls[0]?.id).toMatch(/^[A-Za-z0-9]{9}$/);
});

test.each([
  ['a line break in a text', '{"text": "one\ntwo"}'],
  ['no JSON', '{oops}'],
])(
  'arguments that are none (%s) are told as they are, and nothing behind them becomes text',
  (_, written) => {
    for (const family of ['hermes', 'llama3', 'mistral', 'deepseek_v3', 'deepseek_v31'] as const) {
      const { begin, end } = toolFamily(family).frame('f');
      for (const size of [1, 4, 1000]) {
        const { text, calls } = read(family, begin + written + end, size);
        expect([text, calls.map((call) => call.arguments)]).toEqual(['', [written]]);
      }
    }
  },
);

test.each(SECTIONED)(
  '%s: arguments that lack a bracket hide no call behind them',
  (family, call, open, close) => {
    const broken = '{"a": {"b": "</x>"}';
    const response = `${open}${call('f', broken, 0)}${call('time', '{}', 1)}${close} so`;
    for (const size of [1, 2, 3, 7, response.length]) {
      const { text, calls } = read(family, response, size);
      const sources = calls.map(({ name, arguments: source }) => [name, source.replace(/\s*`*$/, '')]);
      expect([size, text, sources]).toEqual([
        size,
        ' so',
        [
          ['f', broken],
          ['time', '{}'],
        ],
      ]);
    }
  },
);

test.each([
  ['{"a": {"b": 1}', '}'],
  ['{"a": [{"b": "</tool_call>"', ''],
  ['{"a": 1, "b"', ''],
  ['{"a": 1}', ''],
])('hermes: brackets that %s lacks hide no call behind them, and no part of a tag is text', (broken, end) => {
  const written = (source: string): string => `<tool_call>{"name": "f", "arguments": ${source}`;
  const response = `${written(broken)}${end}</tool_call>\n${written('{}')}}</tool_call> so`;
  for (const size of [1, 2, 3, 7, response.length]) {
    const { text, calls } = read('hermes', response, size);
    expect([size, text, calls.map((call) => call.arguments)]).toEqual([size, ' so', [broken + end, '{}']]);
  }
});

test('of arguments that come twice the first ones count', () => {
  for (const second of ['{"b": 2}', '"more"', 'null']) {
    const body = `{"name": "f", "arguments": {"a": 1}, "parameters": ${second}, "arguments": ${second}}`;
    const { text, calls } = read('hermes', `<tool_call>${body}</tool_call>`, 3);
    expect([text, calls.map((call) => call.arguments)]).toEqual(['', ['{"a": 1}']]);
  }
});

test('a call that is cut off keeps what there is of it', () => {
  const { calls, text } = read('hermes', '<tool_call>{"name": "f", "arguments": {"a": 1', 5);
  expect([text, calls[0]?.name, calls[0]?.arguments]).toEqual(['', 'f', '{"a": 1']);
});

test('ids of Kimi K2 are what the model writes, since its template shows them', () => {
  const call = (name: string, i: number): string =>
    `<|tool_call_begin|>functions.${name}:${i}<|tool_call_argument_begin|>{}<|tool_call_end|>`;
  for (const size of [1, 5, 1000]) {
    const { calls } = read('kimi_k2', `<|tool_calls_section_begin|>${call('f', 2)}${call('g.h', 3)}`, size);
    expect(calls.map(({ id, name }) => [id, name])).toEqual([
      ['functions.f:2', 'f'],
      ['functions.g.h:3', 'g.h'],
    ]);
  }
});

test.each([
  ['glm', 'glm45'],
  ['minimax', 'minimax_m2'],
  ['seed', 'seed_oss'],
  ['kimi', 'kimi_k2'],
  ['llama3_json', 'llama3'],
  ['gemma4', 'gemma4'],
  ['hermes', 'hermes'],
] as const)('%s of verl is %s', (format, name) => {
  expect(familyOfFormat(format).name).toBe(name);
});

test('the family is that of the chat template', () => {
  const calls = "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' }}{% if m['tool_calls'] %}";
  const deepseek = `{% if tools %}{{ tools }}{% endif %}${calls}`;
  expect(familyOf(calls)).toBeNull();
  expect(familyOf(`${deepseek}{{ '\\n\`\`\`json' }}`)?.name).toBe('deepseek_v3');
  expect(familyOf(deepseek)?.name).toBe('deepseek_v31');
  expect(familyOf("{{ '<|tool_calls_section_begin|>' }}")?.name).toBe('kimi_k2');
  expect(familyOf('{% for m in messages %}<tool_call>')?.name).toBe('hermes');
  expect(familyOf("{{ '[AVAILABLE_TOOLS]' }}")?.name).toBe('mistral');
  for (const tag of ['<|tool_call_start|>', '<|tool_list_start|>'])
    expect(familyOf(`{{ '${tag}' }}`)?.name).toBe('lfm2');
  expect(familyOf("{{ '<function_calls>' }}")?.name).toBe('olmo3');
  expect(familyOf("{{ '<|tool_call>call:' }}")?.name).toBe('gemma4');
  expect(familyOf("<|start_header_id|>{{ 'ipython' }}")?.name).toBe('llama3');
  expect([familyOf('<|im_start|>'), familyOf(null)]).toEqual([null, null]);
});
