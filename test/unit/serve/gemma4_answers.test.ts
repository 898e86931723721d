// Responses of Gemma 4 in what clients are given, and what grammars hold them to.
import { endTokenIds } from '../../../ts/data/end_tokens';
import { TokenBytes } from '../../../ts/data/token_bytes';
import type { Grammar } from '../../../ts/rollout/request';
import type { ServedModel } from '../../../ts/serve/call/served_model';
import { GrammarThreads, grammarVocabulary } from '../../../ts/serve/grammar/grammar_threads';
import { answerChat } from '../../../ts/serve/openai/chat';
import { forcedCalls, responseForm } from '../../../ts/serve/openai/formats';
import { callReading, toolFamily } from '../../../ts/serve/tools/families';
import type { ToolParser } from '../../../ts/serve/tools/tool_parser';
import { GEMMA4_TOKENS, gemma4Template } from '../../helpers/gemma4_template';
import { ScriptedEngine } from '../../helpers/scripted_engine';
import { chatTokenizer, served } from '../agent/chat_world';
import { read } from './harmony_calls';
import type { Json } from './served';
import { takesTokens } from './takes_tokens';

const family = toolFamily('gemma4');
const tokenizer = chatTokenizer(gemma4Template(true), GEMMA4_TOKENS);
const eosTokenIds = endTokenIds([], tokenizer);
const grammars = new GrammarThreads(
  grammarVocabulary(tokenizer, new TokenBytes(tokenizer), {
    vocabSize: tokenizer.vocabSize,
    stopTokenIds: eosTokenIds,
    tags: family.tags,
  }),
);
afterAll(() => grammars.close());

const OPEN = '<|channel>thought\n';
const TOOLS = ['get_weather', 'time'].map((name) => ({
  type: 'function' as const,
  function: {
    name,
    parameters: { type: 'object', properties: { x: { type: 'integer' } }, required: ['x'] },
  },
}));
const CALL = '<|tool_call>call:time{x:1}<tool_call|>';
const SCHEMA = {
  type: 'object',
  properties: { a: { type: 'integer' } },
  required: ['a'],
  additionalProperties: false,
};
const JSON_OF_SCHEMA = { type: 'json_schema' as const, json_schema: { name: 'a', schema: SCHEMA } };

describe('what clients are given', () => {
  const { signal } = new AbortController();
  /** The answer to a question, and the prompt that the engine was given. */
  async function ask(response: string, body: object) {
    const engine = new ScriptedEngine(() => ({ tokens: tokenizer.encode(response) }));
    const model: ServedModel = { ...served(tokenizer), eosTokenIds, engine, grammars };
    const asked = { model: 'policy', messages: [{ role: 'user', content: 'sum' }], ...body };
    const answer = await answerChat(model, asked, signal);
    const chunks: Json[] = [];
    if ('events' in answer)
      for await (const { data } of answer.events) if (data !== '[DONE]') chunks.push(JSON.parse(data));
    return {
      choice: 'body' in answer ? (answer.body as Json).choices[0] : null,
      deltas: chunks.map(({ choices: [one] }) => one?.delta ?? {}),
      prompt: tokenizer.decode(engine.requests[0]?.promptIds ?? [], { skipSpecialTokens: false }),
    };
  }

  test.each([
    ['without tools', {}],
    ['with tools', { tools: TOOLS }],
    ['none of which may be called', { tools: TOOLS, tool_choice: 'none' }],
  ])('thoughts beside the answer, %s', async (_, body) => {
    const response = `${OPEN}I think: 4.\n<channel|>Four.<turn|>`;
    const { choice } = await ask(response, body);
    expect(choice.message).toMatchObject({ content: 'Four.', reasoning_content: 'I think: 4.' });
    expect(choice.finish_reason).toBe('stop');
    const { deltas } = await ask(response, { ...body, stream: true });
    const joined = (key: string): string => deltas.map((delta) => delta[key] ?? '').join('');
    expect([joined('reasoning_content'), joined('content')]).toEqual(['I think: 4.', 'Four.']);
  });

  test('calls, of which every token that says what they are is seen', async () => {
    const response = `${OPEN}<channel|>${CALL}<|tool_call>call:get_weather{x:2,y:<|"|>a, b}<|"|>}<tool_call|><|tool_response>`;
    const { choice } = await ask(response, { tools: TOOLS });
    expect(choice.message).toMatchObject({ content: null });
    const made = choice.message.tool_calls.map(({ function: f }: Json) => [f.name, JSON.parse(f.arguments)]);
    expect(made).toEqual([
      ['time', { x: 1 }],
      ['get_weather', { x: 2, y: 'a, b}' }],
    ]);
    expect(choice.finish_reason).toBe('tool_calls');
  });

  const history = [
    { role: 'user', content: 'sum' },
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: 'c', type: 'function', function: { name: 'time', arguments: '{"x": 1}' } }],
    },
    { role: 'tool', tool_call_id: 'c', content: 'noon' },
  ];
  const thinking = { messages: history, tools: TOOLS, chat_template_kwargs: { enable_thinking: true } };
  const told = '<|tool_response>response:time{value:<|"|>noon<|"|>}<tool_response|>';

  test('a thought that the prompt has opened, behind what a tool told', async () => {
    const { choice, prompt } = await ask('So.\n<channel|>Noon.<turn|>', thinking);
    expect(prompt.endsWith(CALL + told + OPEN)).toBe(true);
    expect(choice.message).toMatchObject({ content: 'Noon.', reasoning_content: 'So.' });
  });

  test('where a response is held to a form, it is closed', async () => {
    const held = { ...thinking, response_format: JSON_OF_SCHEMA };
    const { choice, prompt } = await ask('{"a": 1}<turn|>', held);
    expect(prompt.endsWith(`${CALL}${told}${OPEN}<channel|>`)).toBe(true);
    expect(choice.message.content).toBe('{"a": 1}');
    expect(choice.message).not.toHaveProperty('reasoning_content');
    const forced = await ask(`${CALL}<|tool_response>`, { ...thinking, tool_choice: 'required' });
    expect(forced.prompt).toBe(prompt);
    expect(forced.choice.message.tool_calls).toHaveLength(1);
  });
});

const takes = (grammar: Grammar, text: string): Promise<boolean> =>
  takesTokens(grammars, grammar, tokenizer.encode(text));

const text = (words: string): string => `<|"|>${words}<|"|>`;

describe('a call that must be made', () => {
  const grammarOf = (parameters: Record<string, unknown>, tool = 'f'): Grammar =>
    forcedCalls(
      family,
      [{ type: 'function', function: { name: tool, parameters: { type: 'object', ...parameters } } }],
      null,
      false,
    );
  const call = (args: string): string => `<|tool_call>call:f{${args}}<tool_call|><|tool_response>`;
  const $defs = {
    n: { type: 'integer' },
    node: { type: 'object', properties: { n: { $ref: '#/$defs/n' } }, required: ['n'] },
  };

  test.each<[string, Record<string, unknown>, string[], string[]]>([
    [
      'a text',
      { type: 'string' },
      ['', 'a, {b}: [c]\n"d" <e> \u00e4'].map(text),
      ['a', '"a"', text('a').slice(5), '1'],
    ],
    [
      'a text of some letters',
      { type: 'string', minLength: 2, maxLength: 3 },
      ['ab', '\u00e4\u00e4'].map(text),
      ['a', 'abcd'].map(text),
    ],
    ['a text with a pattern', { type: 'string', pattern: '^a+$' }, [text('aa')], [text('b'), text('')]],
    [
      'one of some',
      { enum: ['a', 2, null, { b: ['c'], a: true }] },
      [text('a'), '2', 'null', `{a:true,b:[${text('c')}]}`],
      ['a', text('c'), '{}'],
    ],
    [
      'a constant that cannot be written, and one that can',
      { enum: ['<|"|>', 'a'] },
      [text('a')],
      [text('')],
    ],
    ['an integer', { type: 'integer', minimum: 3, maximum: 5 }, ['3'], ['2', text('3'), '3.5']],
    ['a number', { type: 'number' }, ['3', '-2.5e3'], ['a', '']],
    ['true or false', { type: 'boolean' }, ['true', 'false'], ['True', '1']],
    ['a text that may be null', { type: ['string', 'null'] }, [text('a'), 'null'], ['none']],
    ['a choice', { anyOf: [{ type: 'string' }, { $ref: '#/$defs/n' }] }, [text('a'), '12'], ['true', '1.5']],
    ['all of one', { allOf: [{ $ref: '#/$defs/n' }], description: 'n' }, ['1'], [text('a')]],
    ['an object', { $ref: '#/$defs/node' }, ['{n:1}'], ['{}', '{n:1,m:2}', '1']],
    [
      'an object of which nothing is required',
      { type: 'object', properties: { a: { type: 'null' }, B: { type: 'null' }, c: { type: 'null' } } },
      ['{}', '{a:null}', '{B:null,c:null}', '{a:null,B:null,c:null}', '{c:null}'],
      ['{B:null,a:null}', '{a:null,a:null}', '{,B:null}', '{a:null,}'],
    ],
    [
      'an object of its own',
      { type: 'object' },
      ['{}', `{any_1:${text('a')},b:{c:1},d:[1,true]}`],
      ['{1:2}', '[]'],
    ],
    [
      'an object of numbers',
      { type: 'object', additionalProperties: { type: 'integer' } },
      ['{}', '{a:1,b:2}'],
      ['{a:true}'],
    ],
    ['an object of nothing', { type: 'object', additionalProperties: false }, ['{}'], ['{a:1}']],
    [
      'a list',
      { type: 'array', items: { type: 'integer' } },
      ['[]', '[1]', '[1,2,3]'],
      ['[1,]', `[${text('a')}]`, '1'],
    ],
    [
      'a list of some length',
      { type: 'array', items: { type: 'integer' }, minItems: 2, maxItems: 3 },
      ['[1,2]', '[1,2,3]'],
      ['[]', '[1]', '[1,2,3,4]'],
    ],
    [
      'a list of at least two',
      { type: 'array', items: { type: 'integer' }, minItems: 2 },
      ['[1,2]', '[1,2,3,4]'],
      ['[]', '[1]'],
    ],
    [
      'a list with a beginning',
      { type: 'array', prefixItems: [{ type: 'null' }, { type: 'boolean' }] },
      ['[]', '[null]', '[null,true]'],
      ['[true]', '[null,true,1]'],
    ],
    [
      'a list with a beginning, and more',
      { type: 'array', prefixItems: [{ type: 'null' }], items: { type: 'integer' }, minItems: 1 },
      ['[null]', '[null,1,2]'],
      ['[]', '[1]'],
    ],
    [
      'a list of lists',
      { type: 'array', items: { type: 'array', items: { $ref: '#/$defs/node' } } },
      ['[]', '[[],[{n:1},{n:2}]]'],
      ['[1]', '[{n:1}]'],
    ],
    ['whatever it is', {}, [text('a'), '1', 'null', `[{a:1},[],${text('b')}]`], ['a', '', '[[[1]]]']],
  ])('%s', async (_, schema, fitting, others) => {
    const grammar = grammarOf({ properties: { a: schema }, required: ['a'], $defs });
    for (const value of fitting) {
      const response = call(`a:${value}`);
      expect([value, await takes(grammar, response)]).toEqual([value, true]);
      const made = read(callReading(family, TOOLS).parser(), response.replace('<|tool_response>', ''), 4);
      expect([value, made.text, made.calls.map(([name]) => name)]).toEqual([value, '', ['f']]);
    }
    for (const value of others)
      expect([value, await takes(grammar, call(`a:${value}`))]).toEqual([value, false]);
    for (const args of ['', `b:${fitting[0]}`, `a:${fitting[0]},`])
      expect([args, await takes(grammar, call(args))]).toEqual([args, false]);
  });

  test('parameters come in the order of their names; what is not required may be left out', async () => {
    const one = { type: 'null' };
    const grammar = grammarOf({ properties: { d: one, C: one, b: one, a: one }, required: ['b', 'd'] });
    for (const args of ['b:null,d:null', 'a:null,b:null,d:null', 'a:null,b:null,C:null,d:null'])
      expect([args, await takes(grammar, call(args))]).toEqual([args, true]);
    for (const args of ['', 'b:null', 'd:null,b:null', 'a:null,d:null', 'b:null,d:null,e:null'])
      expect([args, await takes(grammar, call(args))]).toEqual([args, false]);
    expect(await takes(grammarOf({}), call(''))).toBe(true);
  });

  test('names that cannot stand without quotation marks stand between the tokens of texts', async () => {
    const grammar = grammarOf({ properties: { 'a: {b}': { type: 'null' } }, required: ['a: {b}'] });
    expect(await takes(grammar, call('<|"|>a: {b}<|"|>:null'))).toBe(true);
  });

  test('several calls follow one another, where several may come', async () => {
    for (const [parallel, name] of [
      [true, null],
      [false, null],
      [true, 'time'],
    ] as const) {
      const grammar = forcedCalls(family, TOOLS, name, parallel);
      expect(await takes(grammar, `${CALL}<|tool_response>`)).toBe(true);
      expect(await takes(grammar, `${CALL}${CALL}<|tool_response>`)).toBe(parallel && name === null);
      for (const other of [
        '<|tool_response>',
        `${CALL} ${CALL}<|tool_response>`,
        `${CALL}Done.`,
        `${OPEN}<channel|>${CALL}`,
      ])
        expect([other, await takes(grammar, other)]).toEqual([other, false]);
    }
  });

  test('what cannot be written is refused, with the reason', () => {
    const thrown = (parameters: Record<string, unknown>, tool?: string): unknown => {
      try {
        return grammarOf(parameters, tool);
      } catch (error) {
        return error;
      }
    };
    const refusal = (message: RegExp) =>
      expect.objectContaining({ status: 400, param: 'tools', message: expect.stringMatching(message) });
    expect(thrown({ type: 'array' })).toEqual(
      refusal(/form of gemma4 .* expected those of an object, got type array/),
    );
    expect(thrown({ enum: [{}] })).toEqual(refusal(/got enum/));
    expect(thrown({}, 'a{b')).toEqual(refusal(/name of the tool "a\{b"/));
    const elsewhere = { properties: { a: { $ref: 'other#/b' } } };
    expect(thrown(elsewhere)).toEqual(
      refusal(/of f: expected references into the schema itself, got "other#\/b"/),
    );
    expect(thrown({ properties: { a: { type: 'frob' } } })).toEqual(
      refusal(/expected a type of JSON, got "frob"/),
    );
    const tree = { type: 'object', properties: { more: { $ref: '#/$defs/tree' } } };
    expect(thrown({ properties: { a: { $ref: '#/$defs/tree' } }, $defs: { tree } })).toEqual(
      refusal(/too many choices, or references that lead back/),
    );
    const wide = (levels: number): object =>
      levels === 0
        ? { type: 'null' }
        : {
            type: 'object',
            properties: Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`p${i}`, wide(levels - 1)])),
          };
    expect(thrown({ properties: { a: wide(3) } })).toEqual(refusal(/too many choices/));
    const many = { enum: Array.from({ length: 300_000 }, (_, i) => i) };
    expect(thrown({ properties: { a: many } })).toEqual(refusal(/too many choices/));
    const odd = { properties: { '<|"|>': { type: 'string' }, a: { const: '<tool_call|>' } } };
    expect(thrown({ ...odd, required: ['<|"|>'] })).toEqual(refusal(/required cannot be written/));
    expect(thrown({ ...odd, required: ['a'] })).toEqual(refusal(/required cannot be written/));
    expect(thrown(odd)).not.toBeInstanceOf(Error);
  });
});

describe('JSON of a schema, perhaps after a thought', () => {
  const choice = { forced: false, name: null, parallel: true };
  const THOUGHT = `${OPEN}Let < me {see}.\n<channel|>`;

  test.each([
    ['alone', null],
    ['beside calls', TOOLS],
  ])('%s', async (_, tools) => {
    const { grammar, tools: reading } = responseForm(family, tools, choice, JSON_OF_SCHEMA);
    for (const before of ['', THOUGHT, `${OPEN}<channel|>`]) {
      const answer = `${before}{"a": 1}<turn|>`;
      expect([answer, await takes(grammar as Grammar, answer)]).toEqual([answer, true]);
      for (const made of [`${before}${CALL}<|tool_response>`, `${before}${CALL}${CALL}<|tool_response>`])
        expect([made, await takes(grammar as Grammar, made)]).toEqual([made, tools !== null]);
      for (const other of [`${before}no<turn|>`, `${before}{"a": 1}${CALL}`])
        expect([other, await takes(grammar as Grammar, other)]).toEqual([other, false]);
    }
    const parser = () => reading?.parser() as ToolParser;
    expect(read(parser(), `${THOUGHT}{"a": 1}`, 3)).toEqual({
      text: '{"a": 1}',
      reasoning: 'Let < me {see}.',
      calls: [],
    });
    // Whatever texts in it look like.
    const odd = `{"a": "${CALL}${THOUGHT}"}`;
    expect(read(parser(), odd, 3)).toEqual({ text: odd, reasoning: '', calls: [] });
    const calls = tools === null ? [] : [['time', '{"x": 1}']];
    expect(read(parser(), `${THOUGHT}${CALL}`, 3)).toMatchObject({ calls, reasoning: 'Let < me {see}.' });
  });
});
