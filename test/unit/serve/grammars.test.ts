import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { TOOL_FAMILIES, type ToolFamilyName } from '../../../ts/base/tool_formats';
import type { Grammar } from '../../../ts/rollout/request';
import { GrammarThreads } from '../../../ts/serve/grammar/grammar_threads';
import { forcedCalls, responseForm } from '../../../ts/serve/openai/formats';
import { toolFamily } from '../../../ts/serve/tools/families';
import { END, withByteGrammars } from './byte_grammars';
import { takesTokens } from './takes_tokens';

let grammars: GrammarThreads;
withByteGrammars((made) => {
  grammars = made;
});

const allowed = (mask: Uint32Array): number[] =>
  Array.from({ length: mask.length * 32 }, (_, id) => id).filter(
    (id) => ((mask[id >> 5] as number) >>> (id & 31)) & 1,
  );

const SLOW = '^(.{0,20}){1,3}$';

/** What a model of random weights would write: any of the tokens that may come; closing brackets and quotes are likelier. */
async function walk(grammar: Grammar, seed: number): Promise<string> {
  let state = seed;
  const random = (below: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  const constraint = await grammars.open(grammar);
  const bytes: number[] = [];
  let last = new Int32Array(0);
  while (bytes.length < 4000) {
    const mask = (await constraint.next(last)) as Uint32Array;
    const choices = allowed(mask);
    expect(choices.length).toBeGreaterThan(0);
    const ending = choices.filter((id) => id === END || '"}]'.includes(String.fromCharCode(id)));
    const from = ending.length > 0 && random(4) > 0 ? ending : choices;
    const token = from[random(from.length)] as number;
    if (token === END) break;
    bytes.push(token);
    last = Int32Array.of(token);
  }
  constraint.close();
  return Buffer.from(bytes).toString('utf8');
}

test('a schema that takes too long to compile is refused, and holds up no masks meanwhile', async () => {
  // As large as a vocabulary is today: of pieces of text of up to nine letters.
  const tokens = Array.from({ length: 150_000 }, (_, i) =>
    i < 95
      ? i === 0
        ? '\u0120'
        : String.fromCharCode(32 + i)
      : `${i % 2 ? '\u0120' : ''}${(i * 7919).toString(36)}`,
  );
  const large = new GrammarThreads({ tokens, stopTokenIds: [149_999] });
  try {
    const open = await large.open({ kind: 'json-schema', schema: '{"type":"string"}' });
    expect(allowed((await open.next(new Int32Array(0))) as Uint32Array)).toContain(2);
    const pattern = '^(.{0,4000}){1,9}[^a]{1,4000}$';
    let refused = false;
    const slow: Grammar = { kind: 'json-schema', schema: JSON.stringify({ type: 'string', pattern }) };
    const long = large.open(slow).finally(() => {
      refused = true;
    });
    const refusal = expect(long).rejects.toMatchObject({
      status: 400,
      message: expect.stringMatching(
        /cannot be used: compiling it took more than 10000 ms; lengths of texts \(maxLength,/,
      ),
    });
    expect((await open.next(Int32Array.of(2)))?.length).toBe(Math.ceil(150_000 / 32));
    expect(refused).toBe(false);
    await refusal;
    open.close();
    // It is remembered: nobody waits for it again, not even for the thread that starts in place of the one that was given up.
    const first = await Promise.race([
      large.open(slow).catch(() => 'the refusal'),
      large.open({ kind: 'json-schema', schema: '{"type":"integer"}' }),
    ]);
    expect(first).toBe('the refusal');
    (await large.open({ kind: 'json-schema', schema: '{"type":"integer"}' })).close();
  } finally {
    await large.close();
  }
}, 120_000);

const PERSON = {
  type: 'object',
  properties: {
    name: { type: 'string' },
    age: { type: 'integer' },
    tags: { type: 'array', items: { enum: ['a', 'b'] }, maxItems: 3 },
    friend: { anyOf: [{ type: 'null' }, { $ref: '#' }] },
  },
  required: ['name', 'age'],
  additionalProperties: false,
};
const schema = (value: unknown): Grammar => ({ kind: 'json-schema', schema: JSON.stringify(value) });

test('whatever is drawn among the allowed tokens is JSON of the schema', async () => {
  for (let seed = 1; seed <= 12; seed++) {
    const text = await walk(schema(PERSON), seed);
    const person = JSON.parse(text);
    expect([typeof person.name, Number.isInteger(person.age)]).toEqual(['string', true]);
    expect(Object.keys(person).every((key) => key in PERSON.properties)).toBe(true);
    expect((person.tags ?? []).every((tag: string) => tag === 'a' || tag === 'b')).toBe(true);
  }
});

test('strings of a bounded length have no control characters', async () => {
  const bounded = { type: 'array', items: { type: 'string', maxLength: 12 }, minItems: 4, maxItems: 4 };
  for (let seed = 1; seed <= 8; seed++) expect(JSON.parse(await walk(schema(bounded), seed))).toHaveLength(4);
});

test('grammars that are no longer kept give their memory back, and matchers of them go on', async () => {
  const program = join(__dirname, '../../helpers/serve/grammar_memory.cjs');
  const { status, stdout } = spawnSync(process.execPath, [program, '70', '200'], { encoding: 'utf8' });
  const [some, many] = JSON.parse(stdout);
  expect([status, many]).toEqual([0, some]);

  const running = await grammars.open(schema({ enum: ['yes'] }));
  await running.next(new Int32Array(0));
  for (let i = 0; i < 70; i++) (await grammars.open(schema({ enum: [`no ${i}`] }))).close();
  expect(allowed((await running.next(Int32Array.of(0x22))) as Uint32Array)).toEqual([0x79]);
  running.close();
});

test('an end may come only when the value is complete', async () => {
  const constraint = await grammars.open(schema({ enum: ['yes'] }));
  const masks = [allowed((await constraint.next(new Int32Array(0))) as Uint32Array)];
  for (const byte of Buffer.from('"yes"'))
    masks.push(allowed((await constraint.next(Int32Array.of(byte))) as Uint32Array));
  expect(masks.map(([only, ...more]) => [only, more.length])).toEqual(
    [...Buffer.from('"yes"'), END].map((id) => [id, 0]),
  );
  expect(allowed((await constraint.next(Int32Array.of(END))) as Uint32Array)).toEqual([END]);
  constraint.close();
});

test.each(TOOL_FAMILIES)('a call that must be made is one that is read: %s', async (name) => {
  const family = toolFamily(name);
  const parameters = { type: 'object', properties: { x: { type: 'integer' } }, required: ['x'] };
  const tools = ['add', 'sub'].map((tool) => ({
    type: 'function' as const,
    function: { name: tool, parameters },
  }));
  for (const [chosen, parallel] of [
    [null, true],
    ['sub', false],
  ] as const) {
    const text = await walk(forcedCalls(family, tools, chosen, parallel), 3);
    const parser = family.parser(tools);
    const parts = [parser.push(text), parser.end()];
    expect(parts.map((part) => part.text).join('')).toBe('');
    const names = parts.flatMap(({ calls }) => calls.flatMap((call) => call.name ?? []));
    expect(names.length).toBeGreaterThan(0);
    expect(names.every((one) => (chosen === null ? ['add', 'sub'] : [chosen]).includes(one))).toBe(true);
  }
});

test.each<[string, Record<string, unknown>]>([
  ['that say nothing', {}],
  ['that have a description alone', { description: 'none needed' }],
  ['without a type', { properties: { x: { type: 'integer' } }, required: ['x'] }],
  ['that may be null', { type: ['object', 'null'], properties: { x: { type: 'integer' } } }],
  [
    'that are a reference',
    {
      $ref: '#/$defs/p',
      $defs: { p: { type: 'object', required: ['x'], properties: { x: { type: 'integer' } } } },
    },
  ],
  [
    'of a choice',
    {
      anyOf: [
        { type: 'object', properties: { x: { type: 'null' } }, required: ['x'] },
        { type: 'object', properties: { y: { type: 'null' } }, required: ['y'] },
      ],
    },
  ],
  [
    'with odd names',
    {
      type: 'object',
      properties: {
        'a b {}': { enum: ['</tool_call>', '\u{1f44d}', '"}'] },
        '\u65e5\u672c': { const: true },
      },
      required: ['a b {}', '\u65e5\u672c'],
      additionalProperties: false,
    },
  ],
])('a call that must be made has an object as arguments: parameters %s', async (_, parameters) => {
  for (const name of TOOL_FAMILIES) {
    const family = toolFamily(name);
    const tools = [{ type: 'function' as const, function: { name: 'f', parameters } }];
    for (let seed = 1; seed <= 6; seed++) {
      const text = await walk(forcedCalls(family, tools, 'f', false), seed);
      const parser = family.parser(tools);
      const parts = [parser.push(text), parser.end()];
      const written = parts.flatMap(({ calls }) => calls.map((call) => call.arguments)).join('');
      expect([name, text, parts.map((part) => part.text).join('')]).toEqual([name, text, '']);
      expect(JSON.parse(written)).toEqual(expect.objectContaining({}));
      expect(written.startsWith('{')).toBe(true);
    }
  }
});

/** Whether a response may be this text, from its first token to its end. */
const takes = (grammar: Grammar, text: string): Promise<boolean> =>
  takesTokens(grammars, grammar, [...Buffer.from(text), END]);

describe('calls that may come beside JSON of a schema', () => {
  const parameters = { type: 'object', properties: { x: { type: 'integer' } }, required: ['x'] };
  const tools = ['add', 'sub'].map((name) => ({
    type: 'function' as const,
    function: { name, parameters },
  }));
  const CALLS: Record<Exclude<ToolFamilyName, 'gpt-oss'>, [one: string, two: string | null]> = {
    hermes: [
      '<tool_call>\n{"name": "sub", "arguments": {"x": 1}}\n</tool_call>',
      '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>\n<tool_call>\n{"name": "sub", "arguments": {"x": 2}}\n</tool_call>',
    ],
    qwen3_coder: [
      '<tool_call>\n<function=sub>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>',
      '<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=sub>\n<parameter=x>\n2\n</parameter>\n</function>\n</tool_call>',
    ],
    glm45: [
      '<tool_call>sub\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>',
      '<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>sub\n<arg_key>x</arg_key>\n<arg_value>2</arg_value>\n</tool_call>',
    ],
    llama3: [
      '{"name": "sub", "parameters": {"x": 1}}',
      '{"name": "add", "parameters": {"x": 1}}; {"name": "sub", "parameters": {"x": 2}}',
    ],
    mistral: ['[TOOL_CALLS] [{"name": "sub", "arguments": {"x": 1}}]', null],
    minimax_m2: [
      '<minimax:tool_call>\n<invoke name="sub">\n<parameter name="x">1</parameter>\n</invoke>\n</minimax:tool_call>',
      null,
    ],
    seed_oss: [
      '<seed:tool_call>\n<function=sub>\n<parameter=x>1</parameter>\n</function>\n</seed:tool_call>',
      null,
    ],
    deepseek_v3: [
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>sub\n```json\n{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      null,
    ],
    deepseek_v31: [
      '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>sub<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
      null,
    ],
    lfm2: ['<|tool_call_start|>[{"name": "sub", "arguments": {"x": 1}}]<|tool_call_end|>', null],
    gemma4: [
      '<|tool_call>call:sub{x:1}<tool_call|>',
      '<|tool_call>call:add{x:1}<tool_call|><|tool_call>call:sub{x:2}<tool_call|>',
    ],
    olmo3: ['<function_calls>{"name": "sub", "arguments": {"x": 1}}</function_calls>', null],
    kimi_k2: [
      '<|tool_calls_section_begin|><|tool_call_begin|>functions.sub:12<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|><|tool_calls_section_end|>',
      null,
    ],
  };
  const person = { type: 'json_schema' as const, json_schema: { schema: PERSON } };
  const ada = '{"name": "Ada", "age": 36}';
  const form = (name: ToolFamilyName, format: Parameters<typeof responseForm>[3], parallel = true) =>
    responseForm(toolFamily(name), tools, { forced: false, name: null, parallel }, format);

  test.each(Object.keys(CALLS) as ToolFamilyName[])('either comes, and nothing else: %s', async (name) => {
    const [one, two] = CALLS[name as keyof typeof CALLS];
    const either = form(name, person).grammar as Grammar;
    expect(await takes(either, one)).toBe(true);
    expect(await takes(either, ada)).toBe(true);
    if (two !== null) {
      expect(await takes(either, two)).toBe(true);
      expect(await takes(form(name, person, false).grammar as Grammar, two)).toBe(false);
      expect(await takes(form(name, person, false).grammar as Grammar, one)).toBe(true);
    }
    for (const other of [
      'hello',
      '{"age": 36}',
      `${ada} ${ada}`,
      `${ada}${one}`,
      `${one}${ada}`,
      one.replace('sub', 'mul'),
    ])
      expect([other, await takes(either, other)]).toEqual([other, false]);
  });

  test.each(Object.keys(CALLS) as ToolFamilyName[])('any object is JSON, too: %s', async (name) => {
    const either = form(name, { type: 'json_object' }).grammar as Grammar;
    for (const text of [CALLS[name as keyof typeof CALLS][0], '{}', '{"a": [1, {"b": null}]}'])
      expect([text, await takes(either, text)]).toEqual([text, true]);
    for (const text of ['hello', '[1]']) expect([text, await takes(either, text)]).toEqual([text, false]);
  });
});

const ODD = ['a"b', 'c\\d', 'e\nf', 't\u0001', 'a\\"b\\\\', '__proto__', 'properties'];

test.each(ODD)('a property may have any name: %j', async (name) => {
  const inner = { type: 'object', properties: { [name]: { const: name } }, required: [name] };
  const properties = Object.fromEntries([
    [name, inner],
    ['other', { enum: [{ properties: { [name]: 1 }, required: [name] }] }],
  ]);
  const outer = { type: 'object', properties, required: [name, 'other'], additionalProperties: false };
  const [quoted, enumerated] = [name, outer.properties['other'].enum[0]].map((one) => JSON.stringify(one));
  const text = `{${quoted}: {${quoted}: ${quoted}}, "other": ${enumerated}}`;
  expect(await takes(schema(outer), text)).toBe(true);
  expect(await takes(schema(outer), text.replace(/^{"/, '{"x'))).toBe(false);
  const family = toolFamily('hermes');
  const tools = [{ type: 'function' as const, function: { name: 'f', parameters: outer } }];
  const call = `<tool_call>\n{"name": "f", "arguments": ${text}}\n</tool_call>`;
  expect(await takes(forcedCalls(family, tools, 'f', false), call)).toBe(true);
});

test('masks of a grammar that compiles slowly hold up no others', async () => {
  // About a second with a vocabulary of this size.
  const tokens = Array.from({ length: 50_000 }, (_, i) =>
    i < 94 ? String.fromCharCode(33 + i) : (i * 7919).toString(36),
  );
  const large = new GrammarThreads({ tokens, stopTokenIds: [49_999] });
  try {
    const open = await large.open(schema({ type: 'string' }));
    await open.next(Int32Array.of(tokens.indexOf('"')));
    let compiled = false;
    const slow = large.open(schema({ type: 'string', pattern: SLOW })).finally(() => {
      compiled = true;
    });
    let masks = 0;
    const letter = Int32Array.of(tokens.indexOf('a'));
    for (; !compiled; masks++) await open.next(letter);
    (await slow).close();
    // Where both were of one thread there would be those before and after.
    expect(masks).toBeGreaterThan(20);
  } finally {
    await large.close();
  }
}, 120_000);

const BAD: [string, Grammar, RegExp][] = [
  ['a type that is none', schema({ type: 'frob' }), /^this schema cannot be used: .*frob/],
  ['a reference to nothing', schema({ $ref: '#/nope' }), /nope/],
  ['a pattern that is none', schema({ type: 'string', pattern: '(' }), /parenthesis/],
];

test.each(BAD)('%s is refused, and what runs goes on', async (_, grammar, message) => {
  const running = await grammars.open(schema({ enum: ['yes'] }));
  await expect(grammars.open(grammar)).rejects.toMatchObject({
    status: 400,
    message: expect.stringMatching(message),
  });
  await expect(grammars.open(grammar)).rejects.toThrow(message);
  expect(allowed((await running.next(new Int32Array(0))) as Uint32Array)).toEqual([0x22]);
  running.close();
});
