import { setImmediate as turn } from 'node:timers/promises';
import { toolFamily } from '../../../ts/serve/tools/families';
import { CallCollector } from '../../../ts/serve/tools/tool_parser';
import { expectRead, FORMS, type Form, OPENED, read, TOOLS, WRITE } from './tag_writing';

const VALUES: [key: string, written: string, value: unknown][] = [
  ['text', 'Paris', 'Paris'],
  ['text', '42', '42'],
  ['text', 'null', 'null'],
  ['text', 'a "b" \\ {c}', 'a "b" \\ {c}'],
  ['text', '\u00e4\u65e5\u{1f44d}\u0007', '\u00e4\u65e5\u{1f44d}\u0007'],
  ['text', '  one\n\n  two\n', '  one\n\n  two\n'],
  ['text', '\none', '\none'],
  ['text', '\n', '\n'],
  ['text', '', ''],
  ['text', 'if a < b and </b> <par </parameters> <arg', 'if a < b and </b> <par </parameters> <arg'],
  ['count', '42', 42],
  ['count', '-007', -7],
  ['count', 'many', 'many'],
  ['count', '4.5', 4.5],
  ['share', '4.5', 4.5],
  ['share', '.5', 0.5],
  ['share', '1e3', 1000],
  ['share', '1e999', '1e999'],
  ['share', 'NaN', 'NaN'],
  ['share', '', ''],
  ['sure', 'true', true],
  ['sure', 'False', false],
  ['sure', '1', true],
  ['sure', 'yes', 'yes'],
  ['where', '{"city": "Paris", "at": [1, {}]}', { city: 'Paris', at: [1, {}] }],
  ['where', "{'city': 1}", "{'city': 1}"],
  ['days', '[1, 2]', [1, 2]],
  ['days', '[\n  1\n]', [1]],
  ['gone', 'null', null],
  ['gone', 'None', null],
  ['perhaps', 'null', null],
  ['perhaps', 'None', 'None'],
  ['perhaps', 'yes', 'yes'],
  ['size', '3', 3],
  ['size', 'large', 'large'],
  ['unit', 'C', 'C'],
  ['level', '2', 2],
  ['place', '[1.5, -2]', [1.5, -2]],
];

describe.each(FORMS)('%s', (form) => {
  const write = WRITE[form];

  test.each(VALUES)('a value is what its schema says: %s %j', (key, written, value) => {
    expectRead(form, write('f', [[key, written]]), '', [['f', { [key]: value }]]);
  });

  test('several values, and several calls among text', () => {
    const first = write('f', [
      ['text', 'one\ntwo'],
      ['count', '3'],
      ['days', '[]'],
    ]);
    const args = { text: 'one\ntwo', count: 3, days: [] };
    const whole = `Let me see.\n${first}\n${write('time', [])}`;
    expectRead(form, whole, 'Let me see.\n', [
      ['f', args],
      ['time', {}],
    ]);
    expectRead(form, `${first} then`, ' then', [['f', args]]);
  });

  test('a value without a schema is text, or what the family writes without one', () => {
    const written: [string, string][] = [
      ['a', '5'],
      ['b', '{"c": 1}'],
      ['d', 'five'],
      ['e', '"q"'],
    ];
    const values =
      form === 'glm45'
        ? { a: 5, b: { c: 1 }, d: 'five', e: 'q' }
        : { a: '5', b: '{"c": 1}', d: 'five', e: '"q"' };
    for (const name of ['f', 'time', 'nobody.knows-it/\u00e4'])
      expectRead(form, write(name, written), '', [[name, values]]);
  });

  test('long numbers keep their digits', () => {
    const { calls } = read(form, write('f', [['count', '12345678901234567890123']]), 4);
    expect(calls).toEqual([['f', '{"count": 12345678901234567890123}']]);
  });

  test('what is no call is text', () => {
    const open = OPENED[form];
    const close = open.replace('<', '</');
    for (const text of [
      'a < b <tool',
      open,
      `${open}{"name": "f", "arguments": {}}${close} then`,
      `${open}time()${close}`,
      `${open}\n\n${close} ${open}a b${close}`,
      `${open}nobody\n`,
    ])
      expectRead(form, text, text, []);
  });

  test('a call begins in what was none', () => {
    const open = OPENED[form];
    expectRead(form, `${open}no, ${write('time', [])}`, `${open}no, `, [['time', {}]]);
    expectRead(form, `${open}${write('time', [])}`, open, [['time', {}]]);
  });

  test('cut off anywhere: what has not begun as a call is text, and arguments go as far as they came', () => {
    const solid = (text: string): string => text.replace(/\s/g, '');
    const response = `Hm. ${write('f', [
      ['text', 'a "b"\n'],
      ['count', '12'],
    ])}`;
    const whole = read(form, response, 3).calls[0]?.[1] as string;
    for (let end = 0; end < response.length; end++) {
      const cut = response.slice(0, end);
      const { text, calls } = read(form, cut, 3, true);
      if (calls.length === 0) expect(solid(text)).toBe(solid(cut));
      else {
        const source = calls[0]?.[1] as string;
        expect(text).toBe('Hm. ');
        expect(whole.startsWith(source.replace(/\}$/, ''))).toBe(true);
      }
    }
  });

  test('a text comes while it is written, another value when it is complete', () => {
    const parser = toolFamily(form).parser(TOOLS);
    const response = write('f', [
      ['text', 'abc'],
      ['count', '12'],
    ]);
    const at = response.indexOf('abc');
    const told = (text: string): string =>
      parser
        .push(text)
        .calls.map((call) => call.arguments)
        .join('');
    expect(parser.push(response.slice(0, at + 2)).calls[0]).toEqual({
      index: 0,
      id: expect.stringMatching(/^call_\w{24}$/),
      name: 'f',
      arguments: '',
    });
    expect(told('XYZ')).toBe('XYZ');
    const number = response.indexOf('12');
    expect(told(response.slice(at + 2, number + 1))).toBe('c", "count": ');
    expect(told(response.slice(number + 1))).toBe('12}');
  });

  // Read again with each character they take minutes.
  test('values of any length are read once', async () => {
    const long = 'x<\n'.repeat(160_000);
    for (const [key, written, value] of [
      ['text', long, long],
      ['days', JSON.stringify([long]), [long]],
    ] as const) {
      const response = write('f', [[key, written]]);
      const parser = toolFamily(form).parser(TOOLS);
      const collector = new CallCollector();
      for (let at = 0; at < response.length; at += 4) {
        collector.add(parser.push(response.slice(at, at + 4)).calls);
        if (at % 10_000 === 0) await turn();
      }
      expect(collector.calls.map((call) => JSON.parse(call.arguments)[key])).toEqual([value]);
    }
  }, 40_000);
});

test.each(FORMS)('%s: what ends in the middle of a value has it, unless it was cut off', (form) => {
  const written = (key: string, value: string): string => {
    const whole = WRITE[form]('f', [[key, value]]);
    return whole.slice(0, whole.indexOf(value) + value.length);
  };
  // MiniMax writes no line breaks around values, so that one is a part of it.
  for (const [key, value, json] of [
    ['text', 'one\n\ntwo', 'one\n\ntwo'],
    ['count', '12', 12],
    ['days', '[1,', '[1,'],
  ] as const)
    for (const tail of form === 'minimax_m2' ? ['', '</'] : ['', '\n', '</'])
      expectRead(form, written(key, value) + tail, '', [['f', { [key]: json }]]);
  expect(read(form, written('text', 'abc'), 4, true).calls).toEqual([['f', '{"text": "abc']]);
  expect(read(form, written('count', '1'), 4, true).calls).toEqual([['f', '{"count": ']]);
});

test('calls of Qwen without some of their tags', () => {
  const one = '<function=f>\n<parameter=count>\n1\n</parameter>\n</function>';
  const call: [string, unknown] = ['f', { count: 1 }];
  expectRead('qwen3_coder', `<tool_call>\n${one}`, '', [call]);
  expectRead('qwen3_coder', `<tool_call>\n${one}\n${one}\n</tool_call>`, '', [call, call]);
  expectRead('qwen3_coder', `Hm.\n${one}\n</tool_call>`, 'Hm.\n', [call]);
  expectRead('qwen3_coder', `<tool_call>\n${one}\n<tool_call>\n${one}\n</tool_call>`, '', [call, call]);
  expectRead('qwen3_coder', `<tool_call>${one.replace('</function>', '')}</tool_call>`, '', [call]);
  expectRead('qwen3_coder', `<tool_call>${one.replace('\n</parameter>', '')}</tool_call>`, '', [call]);
  expectRead('qwen3_coder', `<tool_call>${one.replace('\n</parameter>', '')}`, '', [call]);
  expectRead(
    'qwen3_coder',
    '<tool_call><function=f><parameter=text>a<parameter=count>1</parameter></function></tool_call>',
    '',
    [['f', { text: 'a', count: 1 }]],
  );
  expectRead('qwen3_coder', '<tool_call>\n<function=time>\n', '', [['time', {}]]);
  expectRead('qwen3_coder', 'see <function=f> there', 'see <function=f> there', []);
});

test('a text of Qwen may have the end of a function in it', () => {
  const value = '<function>\n</function>\n<b/>';
  expectRead('qwen3_coder', WRITE.qwen3_coder('f', [['text', value]]), '', [['f', { text: value }]]);
});

describe.each<[Form, string, string, (key: string, value: string) => string]>([
  [
    'minimax_m2',
    '<invoke name="f">',
    '</invoke>',
    (key, value) => `<parameter name="${key}">${value}</parameter>`,
  ],
  ['seed_oss', '<function=f>', '</function>', (key, value) => `<parameter=${key}>${value}</parameter>`],
])('%s: calls in a section', (form, begin, end, parameter) => {
  const open = OPENED[form];
  const close = open.replace('<', '</');
  const one = `${begin}\n${parameter('count', '1')}\n${end}`;
  const call: [string, unknown] = ['f', { count: 1 }];

  test('several in one, and in several', () => {
    expectRead(form, `${open}\n${one}\n${one}\n${close}`, '', [call, call]);
    expectRead(form, `Hm.\n${open}${one}${one}${close}\n${open}${one}${close} so`, 'Hm.\n so', [
      call,
      call,
      call,
    ]);
  });

  test('without some of their tags', () => {
    expectRead(form, `${open}\n${one}`, '', [call]);
    expectRead(form, `${open}\n${one}\n${one}`, '', [call, call]);
    expectRead(form, `Hm.\n${one}\n${close} then`, 'Hm.\n then', [call]);
    expectRead(form, `${open}${one.replace(end, '')}${close}`, '', [call]);
    expectRead(form, `${open}${one.replace('</parameter>', '')}${close}`, '', [call]);
    expectRead(form, `${open}${one.replace('</parameter>', '')}`, '', [call]);
    expectRead(form, `${open}${begin}\n`, '', [['f', {}]]);
    const text = parameter('text', 'a').replace('</parameter>', '');
    expectRead(form, `${open}${begin}${text}${parameter('count', '1')}${end}${close}`, '', [
      ['f', { text: 'a', count: 1 }],
    ]);
    expectRead(form, `see ${begin} there`, `see ${begin} there`, []);
  });

  test('a text may have the end of a call in it', () => {
    const value = `<b>\n${end}\n<b/>`;
    expectRead(form, WRITE[form]('f', [['text', value]]), '', [['f', { text: value }]]);
  });

  test('text behind a call that is not closed, and behind one that is', () => {
    expectRead(form, `${open}${one}\nso`, '\nso', [call]);
    expectRead(form, `${open}${one}${close}\nso`, '\nso', [call]);
    expectRead(form, `${open}${one}${close}\n`, '', [call]);
  });
});

test('calls of GLM without line breaks, or without some of their tags', () => {
  const one = '<tool_call>f<arg_key>text</arg_key><arg_value>a\n</arg_value></tool_call>';
  expectRead('glm45', one + one, '', [
    ['f', { text: 'a\n' }],
    ['f', { text: 'a\n' }],
  ]);
  expectRead('glm45', '<tool_call>time</tool_call>', '', [['time', {}]]);
  const two = '<arg_key>count</arg_key><arg_value>1</arg_value>';
  expectRead('glm45', `<tool_call>f\n<arg_key>text</arg_key><arg_value>a\n${two}</tool_call>`, '', [
    ['f', { text: 'a', count: 1 }],
  ]);
  expectRead('glm45', `<tool_call>f\n${two.replace('</arg_value>', '')}\n</tool_call>`, '', [
    ['f', { count: 1 }],
  ]);
  expectRead('glm45', `<tool_call>f\n${two}`, '', [['f', { count: 1 }]]);
  expectRead('glm45', '<tool_call>time\n', '', [['time', {}]]);
  expect(read('glm45', '<tool_call>time\n', 4, true)).toEqual({ text: '<tool_call>time\n', calls: [] });
});
