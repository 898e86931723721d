// What JSON schemas ask for, and what a grammar holds responses to: of every keyword, in the real one.
import Ajv2020 from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import type { GrammarThreads } from '../../../ts/serve/grammar/grammar_threads';
import { unheldKeyword } from '../../../ts/serve/grammar/unheld_keyword';
import { END, withByteGrammars } from './byte_grammars';
import { type Json, post, type Served, served } from './served';

let grammars: GrammarThreads;
withByteGrammars((made) => {
  grammars = made;
});

/** On one line, as grammars want it. */
function written(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(written).join(', ')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const entries = Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${written(one)}`);
  return `{${entries.join(', ')}}`;
}

/** Which of these values a response may be. */
async function taken(schema: Json, values: Json[]): Promise<Json[]> {
  const out: Json[] = [];
  for (const value of values) {
    const constraint = await grammars.open({ kind: 'json-schema', schema: JSON.stringify(schema) });
    let last = new Int32Array(0);
    let fits = true;
    for (const token of [...Buffer.from(written(value)), END]) {
      const mask = (await constraint.next(last)) as Uint32Array;
      fits = (((mask[token >> 5] as number) >>> (token & 31)) & 1) === 1;
      if (!fits) break;
      last = Int32Array.of(token);
    }
    constraint.close();
    if (fits) out.push(value);
  }
  return out;
}

const ajv = addFormats(new Ajv2020({ strict: false, validateFormats: true }));
const int = { type: 'integer' };
const str = { type: 'string' };
const array = (more: object) => ({ type: 'array', ...more });
const object = (more: object) => ({ type: 'object', ...more });
const shape = (kind: string, more: object) =>
  object({ properties: { kind: { const: kind }, ...more }, required: ['kind'] });

/** Keyword, schema, values of it, others. */
const HELD: [string, Json, Json[], Json[]][] = [
  ['type', int, [3, -1], ['a', 1.5]],
  ['types', { type: ['string', 'null'], maxLength: 2 }, ['ab', null], ['abc', 1]],
  ['const', { const: 'a', title: 'x' }, ['a'], ['b']],
  ['enum', { type: 'string', enum: ['a', 'b'], description: 'x' }, ['a'], ['c', 1]],
  ['anyOf', { anyOf: [int, { type: 'null' }], default: null, title: 'x' }, [1, null], ['a']],
  ['oneOf of types', { oneOf: [int, str] }, [1, 'a'], [null]],
  [
    'oneOf of kinds',
    { oneOf: [shape('a', { x: int }), shape('b', { x: str })] },
    [{ kind: 'a', x: 1 }],
    [{ kind: 'a', x: 's' }],
  ],
  ['oneOf of constants', { oneOf: [{ const: 1 }, { enum: [2, 3] }] }, [1, 3], [4]],
  ['allOf of one', { allOf: [{ $ref: '#/$defs/a' }], description: 'x', $defs: { a: int } }, [1], ['a']],
  ['$ref', { $ref: '#/$defs/a', title: 'x', $defs: { a: int } }, [1], ['a']],
  ['$ref to definitions', { $ref: '#/definitions/a', definitions: { a: int } }, [1], ['a']],
  ['$ref to the root', object({ properties: { a: { $ref: '#' } } }), [{ a: {} }], [{ a: 1 }]],
  [
    'minimum, maximum',
    { type: 'integer', minimum: 3, maximum: 112 },
    [3, 9, 10, 99, 100, 112],
    [2, 1, 113, 119, 120, -4],
  ],
  ['minimum', { type: 'integer', minimum: 3 }, [3, 12345], [1, 2, 0, -3]],
  ['maximum', { type: 'integer', maximum: -7 }, [-7, -9, -10, -11, -99, -123456], [-6, -1, 0, 7]],
  ['a fraction as bound', { type: 'integer', minimum: 0.5, exclusiveMaximum: 3.5 }, [1, 3], [0, 4]],
  [
    'exclusiveMinimum, exclusiveMaximum',
    { type: 'integer', exclusiveMinimum: -126, exclusiveMaximum: 1196 },
    [-125, -99, 0, 1195],
    [-126, 1196, 1199],
  ],
  ['both minima', { type: 'integer', minimum: 3, exclusiveMinimum: 5 }, [6], [3, 5]],
  ['bounds beside another type', { type: ['integer', 'null'], minimum: 3 }, [3, null], [2]],
  [
    'bounds of all that JavaScript counts',
    { type: 'integer', minimum: Number.MIN_SAFE_INTEGER, maximum: Number.MAX_SAFE_INTEGER },
    [Number.MAX_SAFE_INTEGER, 0, -12],
    [Number.MAX_SAFE_INTEGER + 1],
  ],
  ['minimum of a number', { type: 'number', minimum: 0 }, [0, 1.5], [-1, -0.5]],
  [
    'minLength, maxLength',
    { type: 'string', minLength: 2, maxLength: 3 },
    ['ab', '\u00e4\u00e4\u00e4'],
    ['a', 'abcd'],
  ],
  ['pattern', { type: 'string', pattern: '^a+$' }, ['aa'], ['', 'ab']],
  ['format date', { type: 'string', format: 'date' }, ['2020-01-02'], ['2020']],
  ['format time', { type: 'string', format: 'time' }, ['10:20:30Z'], ['10']],
  ['format date-time', { type: 'string', format: 'date-time' }, ['2020-01-02T10:20:30Z'], ['2020-01-02']],
  ['format duration', { type: 'string', format: 'duration' }, ['P1D'], ['1D']],
  ['format email', { type: 'string', format: 'email' }, ['a@b.co'], ['a']],
  ['format hostname', { type: 'string', format: 'hostname' }, ['a.b'], ['_ _']],
  ['format ipv4', { type: 'string', format: 'ipv4' }, ['1.2.3.4'], ['1.2.3']],
  ['format ipv6', { type: 'string', format: 'ipv6' }, ['::1'], ['1.2']],
  ['format uuid', { type: 'string', format: 'uuid' }, ['123e4567-e89b-12d3-a456-426614174000'], ['123e']],
  ['format uri', { type: 'string', format: 'uri' }, ['http://a.b/c'], ['a b']],
  ['format uri-reference', { type: 'string', format: 'uri-reference' }, ['/a'], ['a b']],
  ['format uri-template', { type: 'string', format: 'uri-template' }, ['/{a}'], ['{']],
  ['format json-pointer', { type: 'string', format: 'json-pointer' }, ['/a'], ['a']],
  ['format relative-json-pointer', { type: 'string', format: 'relative-json-pointer' }, ['0#'], ['a']],
  ['items', array({ items: int }), [[1], []], [['a'], 1]],
  ['items: false', array({ prefixItems: [int], items: false }), [[1]], [[1, 2]]],
  ['minItems, maxItems', array({ items: int, minItems: 1, maxItems: 2 }), [[1], [1, 2]], [[], [1, 2, 3]]],
  ['prefixItems', array({ prefixItems: [int, str], minItems: 2, maxItems: 2 }), [[1, 'a']], [['a', 1], [1]]],
  ['unevaluatedItems', array({ prefixItems: [int], unevaluatedItems: str }), [[1, 'a']], [[1, 1]]],
  [
    'properties, required',
    object({ properties: { a: int, b: str }, required: ['a'] }),
    [{ a: 1 }, { a: 1, b: 's' }],
    [{}, { a: 's' }],
  ],
  ['properties without a type', { properties: { a: int }, required: ['a'] }, [{ a: 1 }], [{}]],
  [
    'additionalProperties: false',
    object({ properties: { a: int }, additionalProperties: false }),
    [{}],
    [{ b: 1 }],
  ],
  ['additionalProperties', object({ additionalProperties: int }), [{ a: 1 }], [{ a: 's' }]],
  [
    'additionalProperties of any name',
    object({ propertyNames: { type: 'string' }, additionalProperties: int }),
    [{ a: 1 }],
    [{ a: 's' }],
  ],
  ['unevaluatedProperties', object({ unevaluatedProperties: int }), [{ a: 1 }], [{ a: 's' }]],
  [
    'patternProperties',
    object({ patternProperties: { '^x.*$': int }, additionalProperties: false }),
    [{ x1: 1 }],
    [{ x1: 's' }, { b: 1 }],
  ],
  ['propertyNames', object({ propertyNames: { pattern: '^x.*$' } }), [{ x1: 1 }], [{ b: 1 }]],
  ['propertyNames of some', object({ propertyNames: { enum: ['a', 'b'] } }), [{ a: 1 }], [{ c: 1 }]],
  [
    'minProperties, maxProperties',
    object({ properties: { a: int, b: int, c: int }, minProperties: 1, maxProperties: 2 }),
    [{ a: 1 }, { b: 1, c: 1 }],
    [{}, { a: 1, b: 1, c: 1 }],
  ],
  [
    'annotations',
    {
      $schema: 'x',
      $id: 'https://a/b',
      $comment: '',
      title: '',
      description: '',
      default: 1,
      examples: [1],
      deprecated: true,
      readOnly: true,
      type: 'string',
      format: 'password',
      contentEncoding: 'base64',
      'x-own': { not: 1 },
    },
    ['a'],
    [1],
  ],
];

test.each(HELD)('%s is held to', async (_, schema, fitting, others) => {
  const { $id: _id, $schema: _schema, ...plain } = schema;
  const validate = ajv.compile(plain);
  // What is a value of the schema, another implementation of it says.
  expect([...fitting, ...others].filter((value) => validate(value))).toEqual(fitting);
  expect(unheldKeyword(schema)).toBeNull();
  expect(await taken(schema, [...fitting, ...others])).toEqual(fitting);
});

test('bounds of integers, wherever they are', async () => {
  const values = [
    0, 1, 2, 5, 9, 10, 11, 19, 23, 99, 100, 101, 109, 110, 112, 120, 199, 200, 999, 1000, 1099, 1100,
  ];
  const all = [...values.slice(1).map((n) => -n), ...values];
  const bounds = [-112, -100, -12, -9, -1, 0, 1, 7, 12, 100, 117, 1000];
  for (const least of [null, ...bounds])
    for (const most of [null, ...bounds]) {
      if (least !== null && most !== null && least > most) continue;
      const schema = {
        ...int,
        ...(least === null ? {} : { minimum: least }),
        ...(most === null ? {} : { maximum: most }),
      };
      const fitting = all.filter((n) => n >= (least ?? -Infinity) && n <= (most ?? Infinity));
      expect([schema, await taken(schema, all)]).toEqual([schema, fitting]);
    }
});

const twice = { a: int, b: int };
const names = { '^x.*$': int };
const UNHELD: [string, Json][] = [
  ['#/multipleOf', { type: 'integer', multipleOf: 7 }],
  ['#/not', { type: 'integer', not: { const: 3 } }],
  ['#/if', { type: 'integer', if: { minimum: 5 }, else: { maximum: 9 } }],
  ['#/allOf', { allOf: [int, { maximum: 9 }] }],
  ['#/type', { type: 'integer', allOf: [{ maximum: 9 }] }],
  ['#/allOf/0/maximum', { allOf: [{ maximum: 9 }] }],
  ['#/minimum', { anyOf: [int], minimum: 4 }],
  ['#/minimum', { type: 'integer', enum: [3, 5], minimum: 4 }],
  ['#/type', { type: 'string', enum: ['a', 3] }],
  ['#/enum', { const: 3, enum: [4] }],
  ['#/properties', object({ properties: twice, anyOf: [{ required: ['a'] }, { required: ['b'] }] })],
  ['#/oneOf', { oneOf: [int, { type: 'number' }] }],
  ['#/oneOf', { oneOf: [shape('a', { x: int }), object({ properties: { kind: { const: 'b' } } })] }],
  ['#/oneOf', { oneOf: [{ $ref: '#' }, int] }],
  ['#/$ref', { $ref: 'https://a/b' }],
  ['#/items/$ref', array({ items: { $ref: 'other.json#/a' } })],
  ['#/$ref', { $ref: '#name', $defs: { a: { $anchor: 'name' } } }],
  ['#/maximum', { $ref: '#/$defs/a', maximum: 4, $defs: { a: int } }],
  [
    '#/$defs/a~1b/multipleOf',
    array({ items: { $ref: '#/$defs/a~1b' }, $defs: { 'a/b': { ...int, multipleOf: 2 } } }),
  ],
  ['#/$dynamicRef', { $dynamicRef: '#a' }],
  ['#/maximum', { type: 'number', maximum: 9 }],
  ['#/minimum', { type: 'number', minimum: 0, maximum: 1 }],
  ['#/exclusiveMinimum', { type: ['number', 'null'], exclusiveMinimum: 0 }],
  ['#/minimum', { type: 'integer', minimum: 1e20 }],
  ['#/minimum', { minimum: 4 }],
  ['#/maxLength', { type: 'string', pattern: '^a+$', maxLength: 2 }],
  ['#/pattern', { type: 'string', format: 'date', pattern: '^2021' }],
  ['#/format', { type: 'string', format: 'regex' }],
  ['#/pattern', { pattern: '^a$' }],
  ['#/uniqueItems', array({ items: int, uniqueItems: true })],
  ['#/contains', array({ items: int, contains: { const: 7 } })],
  ['#/prefixItems/1/multipleOf', array({ prefixItems: [int, { ...int, multipleOf: 2 }] })],
  ['#/required', object({ properties: twice, required: ['c'] })],
  ['#/required', { required: ['c'] }],
  ['#/additionalProperties', object({ properties: twice, additionalProperties: true })],
  ['#/dependentRequired', object({ properties: twice, dependentRequired: { a: ['b'] } })],
  ['#/patternProperties', object({ properties: twice, patternProperties: names })],
  ['#/patternProperties', { patternProperties: names }],
  ['#/patternProperties', object({ patternProperties: { ...names, '^y.*$': str } })],
  ['#/maxProperties', object({ patternProperties: names, maxProperties: 1 })],
  ['#/propertyNames', object({ properties: twice, propertyNames: { pattern: '^x' } })],
  ['#/additionalProperties', object({ propertyNames: { pattern: '^x' }, additionalProperties: int })],
  ['#/propertyNames/maxLength', object({ propertyNames: { pattern: '^x', maxLength: 2 } })],
  [
    '#/properties/a~1b/anyOf/1/multipleOf',
    object({ properties: { 'a/b': { anyOf: [str, { ...int, multipleOf: 2 }] } } }),
  ],
];

test.each(UNHELD)('what nothing holds a response to is found: %s of %j', (pointer, schema) => {
  expect(unheldKeyword(schema)).toMatchObject({ pointer });
});

test('what nothing refers to, and what says nothing of these types, may be anything', () => {
  const unused = { $defs: { a: { not: {} } }, ...int, pattern: 'a', minItems: 3, required: ['x'] };
  expect(unheldKeyword(unused)).toBeNull();
});

describe('requests', () => {
  const messages = [{ role: 'user', content: 'hello' }];
  const parameters = { type: 'object', properties: { x: { ...int, multipleOf: 2 } } };
  const tool = (given: object, strict: boolean | null = true) => ({
    type: 'function',
    function: { name: 'f', parameters: given, strict },
  });
  const format = { type: 'json_schema', json_schema: { name: 'x', schema: parameters, strict: true } };
  let s: Served;
  afterEach(() => s.close());
  const asked = async (body: Json): Promise<[number, string | undefined, string | undefined]> => {
    const { status, text } = await post(s.url, '/v1/chat/completions', { messages, max_tokens: 4, ...body });
    const { error } = JSON.parse(text);
    return [status, error?.param, error?.message];
  };
  const refusal = (field: string) => [
    400,
    field,
    `${field}: this schema cannot be used: #/properties/x/multipleOf: it is not enforced`,
  ];

  test.each(['hermes', 'qwen3_coder', 'gemma4'] as const)(
    'are refused by the field and the keyword: %s',
    async (family) => {
      s = await served(() => '{}', { family, grammars });
      expect(await asked({ response_format: format })).toEqual(refusal('response_format.json_schema.schema'));
      const tools = [tool({ type: 'object', properties: {} }), tool(parameters)];
      const field = 'tools.1.function.parameters';
      expect(await asked({ tools, tool_choice: 'required' })).toEqual(refusal(field));
      expect(await asked({ tools, response_format: { type: 'json_object' } })).toEqual(refusal(field));
      // Without the word they are held to what can be held.
      const loose = { ...format, json_schema: { ...format.json_schema, strict: null } };
      expect((await asked({ response_format: loose }))[0]).toBe(200);
      expect((await asked({ tools: [tool(parameters, null)], tool_choice: 'required' }))[1]).toBeUndefined();
      // Calls that may come are held to nothing.
      expect((await asked({ tools }))[0]).toBe(200);
      expect((await asked({ tools, tool_choice: 'none' }))[0]).toBe(200);
    },
  );

  test('are left to an engine that has grammars of its own', async () => {
    s = await served(() => '{}', { family: 'hermes', grammars: 'engine' });
    expect((await asked({ response_format: format }))[0]).toBe(200);
  });

  test('parameters that are written one by one are those that are named', async () => {
    s = await served(() => '{}', { family: 'qwen3_coder', grammars });
    const open = { type: 'object', properties: twice, required: ['a'], additionalProperties: true };
    expect((await asked({ tools: [tool(open)], tool_choice: 'required' }))[1]).toBeUndefined();
    const whole = [tool({ ...open, minProperties: 1 })];
    expect((await asked({ tools: whole, tool_choice: 'required' }))[2]).toMatch(
      /#\/minProperties: it is not/,
    );
  });

  test.each<[string, Json]>([
    ['format', { ...str, format: 'date' }],
    ['patternProperties', object({ patternProperties: { '^a': int } })],
    ['propertyNames', object({ propertyNames: { pattern: '^a' } })],
    ['maxProperties', object({ additionalProperties: int, maxProperties: 2 })],
    ['maxItems', array({ items: int, maxItems: 65 })],
  ])('values that are not JSON are not held to %s', async (keyword, schema) => {
    const tools = [tool(object({ properties: { a: schema } }))];
    s = await served(() => '{}', { family: 'qwen3_coder', grammars });
    expect((await asked({ tools, tool_choice: 'required' }))[1]).toBeUndefined();
    await s.close();
    s = await served(() => '{}', { family: 'gemma4', grammars });
    const [status, , message] = await asked({ tools, tool_choice: 'required' });
    expect([status, message]).toEqual([400, expect.stringContaining(`#/properties/a/${keyword}: `)]);
  });
});
