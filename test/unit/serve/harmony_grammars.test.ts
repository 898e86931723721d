import { rmSync } from 'node:fs';
import { endTokenIds } from '../../../ts/data/end_tokens';
import { TokenBytes } from '../../../ts/data/token_bytes';
import type { Grammar } from '../../../ts/rollout/request';
import { GrammarThreads, grammarVocabulary } from '../../../ts/serve/grammar/grammar_threads';
import { forcedCalls, responseForm } from '../../../ts/serve/openai/formats';
import { HARMONY_TAGS } from '../../../ts/serve/tools/harmony';
import type { ToolParser } from '../../../ts/serve/tools/tool_parser';
import { HARMONY_TEMPLATE } from '../../helpers/harmony_template';
import { chatTokenizer } from '../agent/chat_world';
import { FINAL, family, read, TOOLS } from './harmony_calls';
import { takesTokens } from './takes_tokens';

describe('grammars', () => {
  const tokenizer = chatTokenizer(HARMONY_TEMPLATE, [...HARMONY_TAGS]);
  const ends = endTokenIds([], tokenizer);
  const vocabulary = grammarVocabulary(tokenizer, new TokenBytes(tokenizer), {
    vocabSize: tokenizer.vocabSize,
    stopTokenIds: ends,
    tags: HARMONY_TAGS,
  });
  const grammars = new GrammarThreads(vocabulary);
  afterAll(async () => {
    await grammars.close();
    rmSync(tokenizer.directory, { recursive: true, force: true });
  });

  const takes = (grammar: Grammar, text: string): Promise<boolean> =>
    takesTokens(grammars, grammar, tokenizer.encode(text));
  const choice = { forced: false, name: null, parallel: true };
  const schema = {
    type: 'object',
    properties: { a: { type: 'integer' } },
    required: ['a'],
    additionalProperties: false,
  };
  const format = { type: 'json_schema' as const, json_schema: { schema } };
  const THOUGHT = '<|channel|>analysis<|message|>Let < me {see}.<|end|><|start|>assistant';
  const CALL = '<|channel|>commentary to=functions.time <|constrain|>json<|message|>{"x": 1}<|call|>';
  const ANSWER = `${FINAL}{"a": 1}<|return|>`;

  test('a call that must be made', async () => {
    const grammar = forcedCalls(family, TOOLS, 'time', true);
    expect(await takes(grammar, CALL)).toBe(true);
    for (const other of [CALL.replace('time', 'get_weather'), CALL.replace('1', '"1"'), ANSWER])
      expect([other, await takes(grammar, other)]).toEqual([other, false]);
  });

  test.each([
    ['JSON of a schema, perhaps after a thought', null],
    ['the same beside calls', TOOLS],
  ])('%s', async (_, tools) => {
    const { grammar, tools: calls } = responseForm(family, tools, choice, format);
    for (const text of [ANSWER, THOUGHT + ANSWER]) {
      expect([text, await takes(grammar as Grammar, text)]).toEqual([text, true]);
      expect(read(calls?.parser() as ToolParser, text, 3).text).toBe('{"a": 1}');
    }
    for (const text of [CALL, THOUGHT + CALL])
      expect([text, await takes(grammar as Grammar, text)]).toEqual([text, tools !== null]);
    for (const text of ['{"a": 1}<|return|>', `${FINAL}no<|return|>`, `${THOUGHT}{"a": 1}<|return|>`])
      expect([text, await takes(grammar as Grammar, text)]).toEqual([text, false]);
  });
});
