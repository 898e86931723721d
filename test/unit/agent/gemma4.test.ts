import { readFileSync } from 'node:fs';
import { AgentChat } from '../../../ts/agent/conversation/chat';
import type { History } from '../../../ts/agent/conversation/conversation_ids';
import { AgentModel } from '../../../ts/agent/model/agent_model';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import type { ChatMessage } from '../../../ts/data/chat_template';
import { endTokenIds } from '../../../ts/data/end_tokens';
import { GEMMA4_TOKENS, gemma4Template } from '../../helpers/gemma4_template';
import { ScriptedEngine } from '../../helpers/scripted_engine';
import { chatTokenizer, served } from './chat_world';

// A file with the chat template of Gemma 4 as it is published, of July 2026 or later.
const PUBLISHED = process.env['TROUPE_TEST_GEMMA4_TEMPLATE'];
const TEMPLATES: [string, string][] = [
  ['a template like that of Gemma 4', gemma4Template(false)],
  ['the same with a thought of nothing before answers', gemma4Template(true)],
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
      parameters: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'string' } } },
    },
  },
];
// Its keys are in another order than the template writes them.
const CALL = '<|tool_call>call:add{b:<|"|>x, "y"}<|"|>,a:1}<tool_call|>';
const OPEN = '<|channel>thought\n';
const told = '<|tool_response>response:add{value:<|"|>3<|"|>}<tool_response|>'.repeat(2);

describe.each(TEMPLATES)('%s', (_, template) => {
  const tokenizer = chatTokenizer(template, GEMMA4_TOKENS);
  const decode = (ids: ArrayLike<number>): string => tokenizer.decode(ids, { skipSpecialTokens: false });

  /** Two questions, each with two calls in one turn: four turns. `end`: of turns with calls. */
  async function play(
    history: History,
    o: {
      thinks?: boolean;
      end?: string;
      words?: string;
      give?: (reply: ChatMessage) => ChatMessage;
    } = {},
  ) {
    const { thinks = true, end = '<|tool_response>', words = '', give = (reply) => reply } = o;
    const engine = new ScriptedEngine(({ promptIds }, turn) => {
      const prompt = decode(promptIds);
      const open = prompt.endsWith(OPEN) ? '' : OPEN;
      const thought = thinks ? `${open}thought ${turn}.\n<channel|>` : '';
      const last = [told, told + OPEN].some((tail) => prompt.endsWith(tail));
      const made = last ? `answer ${turn}<turn|>` : words + CALL + CALL + end;
      return { tokens: [...tokenizer.encode(thought + made)] };
    });
    const model = new AgentModel({ engine, tokenizer, sampling: { maxNewTokens: 500 }, seed: 1 });
    const policy = { ...served(tokenizer), engine, eosTokenIds: endTokenIds([], tokenizer) };
    const variables = thinks ? { enable_thinking: true } : {};
    const chat = new AgentChat(policy, model, new AbortController().signal, history, variables);
    const messages: ChatMessage[] = [];
    for (const question of ['first', 'second']) {
      messages.push({ role: 'user', content: question });
      for (;;) {
        const reply = await chat.complete(messages, { tools });
        messages.push(give(reply.message));
        if (reply.calls.length === 0) break;
        const made = reply.calls.map(({ name, arguments: source }) => [name, JSON.parse(source)]);
        const call = ['add', { b: 'x, "y"}', a: 1 }];
        expect(made).toEqual([call, call]);
        for (const { id } of reply.calls) messages.push({ role: 'tool', tool_call_id: id, content: '3' });
      }
    }
    expect(model.calls).toHaveLength(4);
    const sequences = joinCalls(model.calls);
    const sampled = model.calls.reduce((all, { tokens }) => all + tokens.length, 0);
    const trained = sequences
      .flatMap(({ turns }) => turns)
      .reduce((all, { start, end: to }) => all + to - start, 0);
    expect(trained).toBe(sampled);
    const texts = sequences.map(({ tokens }) => decode(tokens));
    return { messages, texts, after: texts.map((text) => text.slice(text.indexOf('<|turn>user'))) };
  }
  const turn = (i: number, made: string): string => `${OPEN}thought ${i}.\n<channel|>${made}`;
  const asked = (question: string): string => `<|turn>user\n${question}<turn|>\n<|turn>model\n`;

  test('append: one sequence, with every turn as it was sampled and what tools told between them', async () => {
    const { after, messages } = await play('append');
    expect(after).toEqual([
      `${asked('first')}${turn(0, CALL + CALL)}${told}${turn(1, 'answer 1<turn|>\n')}` +
        `${asked('second')}${turn(2, CALL + CALL)}${told}${turn(3, 'answer 3<turn|>')}`,
    ]);
    expect(messages.at(-1)).toEqual({
      role: 'assistant',
      content: 'answer 3',
      reasoning_content: 'thought 3.',
    });
  });

  test('append: without thoughts, and with words before calls', async () => {
    const { after } = await play('append', { thinks: false, words: 'Let me see. ' });
    expect(after).toHaveLength(1);
    expect(after[0]?.replaceAll(`${OPEN}<channel|>`, '')).toBe(
      `${asked('first')}Let me see. ${CALL}${CALL}${told}answer 1<turn|>\n` +
        `${asked('second')}Let me see. ${CALL}${CALL}${told}answer 3<turn|>`,
    );
  });

  test.each(['<turn|>', ''])(
    'append: what tools told begins with its tag where the turn ended with %j',
    async (end) => {
      const { after } = await play('append', { end });
      expect(after).toHaveLength(1);
      expect(after[0]).toContain(`${CALL}${CALL}${end}${told}`);
      expect(after[0]?.match(/user\n/g)).toHaveLength(2);
    },
  );

  test('template: thoughts before an answer are dropped once a question follows it, in a sequence of its own', async () => {
    const { after } = await play('template');
    expect(after).toHaveLength(2);
    expect(after[1]).not.toContain('thought 0');
    expect(after[1]).toContain(`answer 1<turn|>\n${asked('second')}${turn(2, CALL + CALL)}${told}`);
  });

  test('template: thoughts that do not come back are not there, nor are words before calls', async () => {
    const forget = ({ reasoning_content: _thought, ...reply }: ChatMessage) => reply as ChatMessage;
    expect((await play('template', { give: forget })).after).toHaveLength(4);
    const { after } = await play('template', { words: 'Let me see. ' });
    expect(after.length).toBeGreaterThan(2);
    expect(after.at(-1)?.match(/Let me see/g) ?? []).toHaveLength(0);
  });
});
