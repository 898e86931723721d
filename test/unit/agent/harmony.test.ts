import { readFileSync } from 'node:fs';
import { AgentChat } from '../../../ts/agent/conversation/chat';
import type { History } from '../../../ts/agent/conversation/conversation_ids';
import { AgentModel } from '../../../ts/agent/model/agent_model';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import type { ChatMessage } from '../../../ts/data/chat_template';
import { endTokenIds } from '../../../ts/data/end_tokens';
import { HARMONY_TAGS } from '../../../ts/serve/tools/harmony';
import { HARMONY_TEMPLATE } from '../../helpers/harmony_template';
import { ScriptedEngine } from '../../helpers/scripted_engine';
import { chatTokenizer, served } from './chat_world';

// A file with the chat template of gpt-oss as it is published; trl has it as chat_templates/gptoss.jinja.
const PUBLISHED = process.env['TROUPE_TEST_GPT_OSS_TEMPLATE'];
const TEMPLATES: [string, string][] = [
  ['a template like that of gpt-oss', HARMONY_TEMPLATE],
  ...(PUBLISHED === undefined
    ? []
    : [['its own template', readFileSync(PUBLISHED, 'utf8')] as [string, string]]),
];

const tools = [
  {
    type: 'function' as const,
    function: {
      name: 'add',
      description: 'Adds',
      parameters: { type: 'object', properties: { a: { type: 'number' } } },
    },
  },
];
const CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a":1}<|call|>';
const think = (turn: number): string =>
  `<|channel|>analysis<|message|>thought ${turn}.<|end|><|start|>assistant`;

describe.each(TEMPLATES)('%s', (_, template) => {
  const tokenizer = chatTokenizer(template, [...HARMONY_TAGS]);

  /** Two questions, each with a call: four turns. */
  async function play(history: History, give: (reply: ChatMessage) => ChatMessage = (reply) => reply) {
    const engine = new ScriptedEngine(({ promptIds }, turn) => {
      const prompt = tokenizer.decode(promptIds, { skipSpecialTokens: false });
      const last = prompt.endsWith('"3"<|end|><|start|>assistant');
      const words = last ? `<|channel|>final<|message|>answer ${turn}<|return|>` : CALL;
      return { tokens: [...tokenizer.encode(think(turn) + words)] };
    });
    const model = new AgentModel({ engine, tokenizer, sampling: { maxNewTokens: 500 }, seed: 1 });
    const model_ = { ...served(tokenizer), engine, eosTokenIds: endTokenIds([], tokenizer) };
    const chat = new AgentChat(model_, model, new AbortController().signal, history);
    const messages: ChatMessage[] = [];
    for (const question of ['first', 'second']) {
      messages.push({ role: 'user', content: question });
      for (;;) {
        const reply = await chat.complete(messages, { tools });
        messages.push(give(reply.message));
        if (reply.calls.length === 0) break;
        expect(reply.calls.map(({ name, arguments: source }) => [name, source])).toEqual([
          ['add', '{"a":1}'],
        ]);
        expect(reply.finish).toBe('tool_calls');
        messages.push({ role: 'tool', tool_call_id: reply.calls[0]?.id, content: '3' });
      }
    }
    expect(model.calls).toHaveLength(4);
    const sequences = joinCalls(model.calls);
    const texts = sequences.map(({ tokens }) => tokenizer.decode(tokens, { skipSpecialTokens: false }));
    return { model, messages, texts, sequences };
  }

  test('append: one sequence, with every turn as it was sampled and what tools told between them', async () => {
    const { texts, messages, model, sequences } = await play('append');
    expect(texts).toHaveLength(1);
    const [text = ''] = texts;
    const told =
      '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"3"<|end|><|start|>assistant';
    const answer = (turn: number): string =>
      `${think(turn)}<|channel|>final<|message|>answer ${turn}<|return|>`;
    expect(text.slice(text.indexOf('<|start|>user'))).toBe(
      `<|start|>user<|message|>first<|end|><|start|>assistant${think(0)}${CALL}${told}${answer(1)}` +
        `<|start|>user<|message|>second<|end|><|start|>assistant${think(2)}${CALL}${told}${answer(3)}`,
    );
    expect(messages.at(-1)).toEqual({
      role: 'assistant',
      content: 'answer 3',
      reasoning_content: 'thought 3.',
    });
    const sampled = model.calls.reduce((all, { tokens }) => all + tokens.length, 0);
    const trained = sequences
      .flatMap(({ turns }) => turns)
      .reduce((all, { start, end }) => all + end - start, 0);
    expect(trained).toBe(sampled);
  });

  test('template: what the template writes of it now, thoughts before an answer dropped, is a sequence of its own', async () => {
    const { texts } = await play('template');
    expect(texts).toHaveLength(2);
    expect(texts[1]).not.toContain('thought 0');
    expect(texts[1]).toContain('final<|message|>answer 1<|end|><|start|>user<|message|>second');
    expect(texts[1]).toContain(`${think(2)}${CALL}`);
  });

  test('template: thoughts that do not come back are not there', async () => {
    const { texts } = await play(
      'template',
      ({ reasoning_content: _thought, ...reply }) => reply as ChatMessage,
    );
    expect(texts).toHaveLength(4);
    expect(texts[1]?.match(/thought/g)).toHaveLength(1);
  });
});
