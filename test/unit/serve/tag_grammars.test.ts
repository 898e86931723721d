import type { Grammar } from '../../../ts/rollout/request';
import type { GrammarThreads } from '../../../ts/serve/grammar/grammar_threads';
import { forcedCalls } from '../../../ts/serve/openai/formats';
import { toolFamily } from '../../../ts/serve/tools/families';
import { END, withByteGrammars } from './byte_grammars';
import { takesTokens } from './takes_tokens';

let grammars: GrammarThreads;
withByteGrammars((made) => {
  grammars = made;
});

/** Whether a response may be this text, from its first token to its end. */
const takes = (grammar: Grammar, text: string): Promise<boolean> =>
  takesTokens(grammars, grammar, [...Buffer.from(text), END]);

describe.each([
  ['qwen3_coder', (key: string, value: string) => `<parameter=${key}>\n${value}\n</parameter>\n`],
  ['glm45', (key: string, value: string) => `<arg_key>${key}</arg_key>\n<arg_value>${value}</arg_value>\n`],
] as const)('values between tags: %s', (name, written) => {
  const family = toolFamily(name);
  const grammarOf = (parameters: Record<string, unknown>, tool = 'f'): Grammar =>
    forcedCalls(
      family,
      [{ type: 'function', function: { name: tool, parameters: { type: 'object', ...parameters } } }],
      null,
      false,
    );
  const { begin, end } = family.frame('f');

  test.each<[string, Record<string, unknown>, string[], string[]]>([
    ['a text', { type: 'string' }, ['', 'one\n<b> "two" \u00e4', '1'], []],
    ['a text that may be null', { anyOf: [{ type: 'string' }, { type: 'null' }] }, ['null', 'a'], []],
    ['a value of any type', {}, ['null', 'a', '{'], []],
    [
      'a text of some letters',
      { type: 'string', minLength: 2, maxLength: 3 },
      ['ab', '\u00e4\u00e4'],
      ['a', 'abcd'],
    ],
    ['a text with a pattern', { type: 'string', pattern: '^a+$' }, ['aa'], ['b', '']],
    ['one of some', { enum: ['a', 'b c', 2, null] }, ['a', 'b c', '2', 'null'], ['c', '"a"', '']],
    ['one of some that would be read as another', { enum: ['1', 1, ''] }, ['1', ''], ['2']],
    ['a number', { type: 'integer', minimum: 3, maximum: 5 }, ['3'], ['2', '"3"', '3.5', 'a']],
    ['true or false', { type: 'boolean' }, ['true', 'false'], ['True', '1']],
    [
      'an object',
      { type: 'object', properties: { s: { type: 'string' } }, required: ['s'] },
      ['{"s": "a"}'],
      ['{}', 's'],
    ],
    [
      'a list of what is defined elsewhere',
      { type: 'array', items: { $ref: '#/$defs/n' } },
      ['[1, 2]'],
      ['["a"]'],
    ],
    ['a choice', { oneOf: [{ const: 'auto' }, { type: 'integer' }] }, ['auto', '12'], ['other', '1.5']],
  ])('%s', async (_, schema, fitting, others) => {
    const grammar = grammarOf({
      properties: { a: schema },
      required: ['a'],
      $defs: { n: { type: 'integer' } },
    });
    for (const value of fitting)
      expect([value, await takes(grammar, begin + written('a', value) + end)]).toEqual([value, true]);
    for (const value of others)
      expect([value, await takes(grammar, begin + written('a', value) + end)]).toEqual([value, false]);
    expect(await takes(grammar, begin + end)).toBe(false);
    expect(await takes(grammar, begin + written('b', fitting[0] as string) + end)).toBe(false);
  });

  test('what is not required may be left out', async () => {
    const properties = { a: { type: 'string' }, b: { type: 'integer' }, c: { type: 'null' } };
    const grammar = grammarOf({ properties, required: ['b'] });
    const [a, b, c] = [written('a', 'x'), written('b', '1'), written('c', 'null')];
    for (const args of [b, a + b, b + c, a + b + c])
      expect([args, await takes(grammar, begin + args + end)]).toEqual([args, true]);
    for (const args of ['', a, a + c, b + b])
      expect([args, await takes(grammar, begin + args + end)]).toEqual([args, false]);
  });

  test('what tags cannot have between them is refused, with the reason', () => {
    const refusal = (message: RegExp) =>
      expect.objectContaining({ status: 400, param: 'tools', message: expect.stringMatching(message) });
    const thrown = (parameters: Record<string, unknown>, tool?: string): unknown => {
      try {
        return grammarOf(parameters, tool);
      } catch (error) {
        return error;
      }
    };
    const properties = { a: { type: 'array', items: { $ref: '#/properties/b' } }, b: { type: 'integer' } };
    expect(thrown({ properties })).toEqual(refusal(/form of \w+ .* of f: expected references to \$defs/));
    expect(thrown({ type: 'array' })).toEqual(refusal(/expected those of an object, got type array/));
    expect(thrown({ enum: [{}] })).toEqual(refusal(/got enum/));
    const back = { properties: { a: { $ref: '#/properties/b' }, b: { $ref: '#/properties/a' } } };
    const choices = { anyOf: Array.from({ length: 40 }, () => ({ $ref: '#' })) };
    for (const endless of [back, { properties: { a: { anyOf: [{ $ref: '#/properties/a' }] } } }, choices])
      expect(thrown(endless)).toEqual(refusal(/too many choices, or references that lead back/));
    const odd = { properties: { '<a>\n': { type: 'string' } } };
    expect(thrown({ ...odd, required: ['<a>\n'] })).toEqual(refusal(/required cannot be written/));
    expect(thrown(odd)).not.toBeInstanceOf(Error);
    expect(thrown({}, 'a>b<c')).toEqual(refusal(/name of the tool "a>b<c"/));
  });
});
