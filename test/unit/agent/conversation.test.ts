import { getEventListeners } from 'node:events';
import { readFileSync } from 'node:fs';
import { AgentChat } from '../../../ts/agent/conversation/chat';
import type { History } from '../../../ts/agent/conversation/conversation_ids';
import { AgentModel } from '../../../ts/agent/model/agent_model';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import type { ChatMessage } from '../../../ts/data/chat_template';
import type { Tokenizer } from '../../../ts/data/tokenizer';
import { bytewise, chatTokenizer, EOS, served, speaking, TAG_TEMPLATES } from './chat_world';

const tokenizer = chatTokenizer();
const decode = (ids: ArrayLike<number>): string => tokenizer.decode(ids, { skipSpecialTokens: false });

function world(
  speak: (prompt: string, turn: number) => string,
  history: History = 'append',
  own: Tokenizer = tokenizer,
) {
  const engine = speaking(own, speak);
  const model = new AgentModel({ engine, tokenizer: own, sampling: { maxNewTokens: 400 }, seed: 1 });
  const { signal } = new AbortController();
  const chat = new AgentChat({ ...served(own), engine }, model, signal, history);
  return { model, chat, signal };
}

/** Every sampled token is a turn of one sequence, in the context that the engine was given. */
function checkExact({ calls }: AgentModel): number {
  const sequences = joinCalls(calls);
  const seen: number[] = [];
  for (const { tokens, turns } of sequences)
    for (const { call, start, end } of turns) {
      seen.push(call);
      expect([...tokens.subarray(0, start)]).toEqual([...(calls[call]?.promptIds ?? [])]);
      expect([...tokens.subarray(start, end)]).toEqual([...(calls[call]?.tokens ?? [])]);
    }
  expect(seen.sort((a, b) => a - b)).toEqual(calls.map((_, i) => i));
  return sequences.length;
}

const THINKING = (_: string, turn: number): string =>
  `<think>\nthe ${turn}. thought\n</think>\n\nthe answer ${turn}`;

async function tenTurns(chat: AgentChat): Promise<ChatMessage[]> {
  const messages: ChatMessage[] = [];
  for (let turn = 0; turn < 10; turn++) {
    messages.push({ role: 'user', content: `question ${turn}` });
    messages.push((await chat.complete(messages)).message);
  }
  return messages;
}

describe('ten turns with a template that drops thinking', () => {
  test('append: one sequence of exactly the ids that the engine saw and made', async () => {
    const { model, chat, signal } = world(THINKING);
    await tenTurns(chat);
    expect(getEventListeners(signal, 'abort')).toEqual([]);
    expect(checkExact(model)).toBe(1);
    const [sequence] = joinCalls(model.calls);
    const text = decode(sequence?.tokens ?? []);
    expect(text.match(/thought/g)).toHaveLength(10);
    // The newline that the template writes after the end of a turn is there, though nobody sampled it.
    expect(text).toContain(
      'answer 0<|im_end|>\n<|im_start|>user\nquestion 1<|im_end|>\n<|im_start|>assistant\n<think>',
    );
  });

  test('template: siblings, each as the template writes the history now; no token twice', async () => {
    const { model, chat } = world(THINKING, 'template');
    const messages = await tenTurns(chat);
    expect(checkExact(model)).toBe(10);
    const last = model.calls.at(-1);
    const rendered = tokenizer.renderChat(messages.slice(0, -1), true);
    expect(decode(last?.promptIds ?? [])).toBe(rendered);
    expect(rendered.match(/thought/g)).toBeNull();
  });

  test('template: without thinking it is one sequence, with the ids that were sampled', async () => {
    const { model, chat } = world((_, turn) => `the answer ${turn}`, 'template');
    await tenTurns(chat);
    expect(checkExact(model)).toBe(1);
    // "the" was sampled in three tokens; the tokenizer has one for it.
    expect(tokenizer.encode('the')).toHaveLength(1);
    const [sequence] = joinCalls(model.calls);
    expect([...(sequence?.tokens ?? [])].join()).toContain(bytewise('the answer 3').join());
  });
});

// A file with the chat template of Qwen3 as it is published; trl has it as chat_templates/qwen3.jinja.
const QWEN3 = process.env['TROUPE_TEST_QWEN3_TEMPLATE'];

(QWEN3 === undefined ? describe.skip : describe)(
  "Qwen3's own template: ten turns with thinking, three with a tool",
  () => {
    const own = QWEN3 === undefined ? tokenizer : chatTokenizer(readFileSync(QWEN3, 'utf8'));
    const tools = [{ type: 'function' as const, function: { name: 'add', parameters: { type: 'object' } } }];
    const CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>';
    const speak = (prompt: string, turn: number): string =>
      `<think>\nthe ${turn}. thought\n</think>\n\n${/question [258]<\|im_end\|>\n<\|im_start\|>assistant\n$/.test(prompt) ? CALL : `the answer ${turn}`}`;

    const play = async (
      history: History,
    ): Promise<{ model: AgentModel; sequences: number; last: string }> => {
      const { model, chat } = world(speak, history, own);
      const messages: ChatMessage[] = [];
      for (let question = 0; question < 10; question++) {
        messages.push({ role: 'user', content: `question ${question}` });
        let reply = await chat.complete(messages, { tools });
        messages.push(reply.message);
        if (reply.calls.length === 0) continue;
        messages.push({ role: 'tool', tool_call_id: reply.calls[0]?.id, content: '3' });
        reply = await chat.complete(messages, { tools });
        messages.push(reply.message);
      }
      expect(model.calls).toHaveLength(13);
      // Exactly the ids that the engine saw and made, each sampled one once.
      const sequences = checkExact(model);
      return { model, sequences, last: own.renderChat(messages.slice(0, -1), true, { tools }) };
    };

    test('append: one sequence with every thought', async () => {
      const { model, sequences } = await play('append');
      expect(sequences).toBe(1);
      const text = own.decode(joinCalls(model.calls)[0]?.tokens ?? [], { skipSpecialTokens: false });
      expect(text.match(/thought/g)).toHaveLength(13);
      expect(text.match(/<tool_response>\n3\n<\/tool_response>/g)).toHaveLength(3);
    });

    test('template: a sibling for every question, as the template writes what came before; a tool goes on in it', async () => {
      const { model, sequences, last } = await play('template');
      expect(sequences).toBe(10);
      const seen = own.decode(model.calls.at(-1)?.promptIds ?? [], { skipSpecialTokens: false });
      expect(seen).toBe(last);
      expect(seen.match(/thought/g)).toBeNull();
    });
  },
);

describe('conversations with tools', () => {
  const tools = [{ type: 'function' as const, function: { name: 'add', parameters: { type: 'object' } } }];
  // Not as the template would write it: spaces, order of keys.
  const speak = (_: string, turn: number): string =>
    turn < 2 ? `I add\n<tool_call>{"arguments":{"b":2, "a":1},"name":"add"}</tool_call>` : 'three';

  test.each(['append', 'template'] as const)(
    '%s: a call that the template writes otherwise stays as sampled',
    async (history) => {
      const { model, chat } = world(speak, history);
      const messages: ChatMessage[] = [{ role: 'user', content: 'go' }];
      for (let turn = 0; turn < 3; turn++) {
        const reply = await chat.complete(messages, { tools });
        messages.push(reply.message);
        if (turn < 2) {
          expect(reply.calls).toMatchObject([{ name: 'add', arguments: '{"b":2, "a":1}' }]);
          messages.push({ role: 'tool', tool_call_id: reply.calls[0]?.id, content: '3' });
        }
      }
      expect(checkExact(model)).toBe(1);
      const text = decode(joinCalls(model.calls)[0]?.tokens ?? []);
      expect(text.match(/<tool_response>\n3\n<\/tool_response>/g)).toHaveLength(2);
      expect(text.match(/"b":2, "a":1/g)).toHaveLength(2);
    },
  );

  test('a client that sends the call back in its own form is understood', async () => {
    const { model, chat } = world(speak);
    const opening: ChatMessage[] = [{ role: 'user', content: 'go' }];
    await chat.complete(opening, { tools });
    const own = {
      role: 'assistant',
      content: 'I add',
      tool_calls: [{ id: 'x', type: 'function', function: { name: 'add', arguments: { a: 1, b: 2 } } }],
    };
    await chat.complete([...opening, own, { role: 'tool', content: '3' }], { tools });
    expect(checkExact(model)).toBe(1);
  });

  test('a turn that was cut off is closed as the template closes turns', async () => {
    const { model, chat } = world(() => 'x'.repeat(40));
    const messages: ChatMessage[] = [{ role: 'user', content: 'go' }];
    const reply = await chat.complete(messages, { maxNewTokens: 7 });
    expect(reply).toMatchObject({ text: 'xxxxxxx', finish: 'length' });
    await chat.complete([...messages, reply.message, { role: 'user', content: 'on' }]);
    expect(checkExact(model)).toBe(1);
    expect(decode(model.calls[1]?.promptIds ?? [])).toContain('xxxxxxx<|im_end|>\n<|im_start|>user\non');
  });
});

test.each(['qwen3_coder', 'glm45'] as const)(
  'calls as tags around text (%s) have the types of the tools, and the conversation goes on from them',
  async (form) => {
    const call = {
      qwen3_coder: '<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>',
      glm45: '<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>',
    }[form];
    const { model, chat } = world(
      (_, turn) => (turn === 0 ? call : 'done'),
      'append',
      chatTokenizer(TAG_TEMPLATES[form]),
    );
    const parameters = { type: 'object', properties: { x: { type: 'string' } } };
    const tools = [{ type: 'function' as const, function: { name: 'f', parameters } }];
    const messages: ChatMessage[] = [{ role: 'user', content: 'go' }];
    const reply = await chat.complete(messages, { tools });
    expect(reply.calls.map(({ name, arguments: source }) => [name, source])).toEqual([['f', '{"x": "1"}']]);
    messages.push(reply.message, { role: 'tool', content: '2' });
    expect((await chat.complete(messages, { tools })).text).toBe('done');
    expect(checkExact(model)).toBe(1);
  },
);

test.each(['qwen3_coder', 'glm45'] as const)(
  'a conversation goes on from a call that was cut off: %s',
  async (form) => {
    const call = {
      qwen3_coder: '<tool_call>\n<function=f>\n<parameter=x>\n1',
      glm45: '<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1',
    }[form];
    const own = chatTokenizer(TAG_TEMPLATES[form]);
    const { model, chat } = world((_, turn) => (turn === 0 ? `${call}and more` : 'done'), 'append', own);
    const tools = [{ type: 'function' as const, function: { name: 'f' } }];
    const messages: ChatMessage[] = [{ role: 'user', content: 'go' }];
    const reply = await chat.complete(messages, { tools, maxNewTokens: call.length });
    expect([reply.finish, reply.calls.map((one) => one.name)]).toEqual(['length', ['f']]);
    messages.push(reply.message, { role: 'tool', content: 'the arguments are not JSON' });
    expect((await chat.complete(messages, { tools })).text).toBe('done');
    expect(checkExact(model)).toBe(1);
  },
);

test('an agent that compacts its history, and one with two sub-agents: siblings whose union is every call', async () => {
  const { model, chat } = world((_, turn) => `the words ${turn}`);
  const ask = async (messages: ChatMessage[], content: string): Promise<void> => {
    messages.push({ role: 'user', content });
    messages.push((await chat.complete(messages)).message);
  };
  const main: ChatMessage[] = [];
  await ask(main, 'first');
  await ask(main, 'second');
  const helpers: ChatMessage[][] = [
    [{ role: 'system', content: 'helper a' }],
    [{ role: 'system', content: 'helper b' }],
  ];
  for (const helper of helpers) {
    await ask(helper, 'part');
    await ask(helper, 'more');
  }
  const compacted: ChatMessage[] = [
    { role: 'user', content: 'first' },
    { role: 'assistant', content: 'short' },
  ];
  await ask(compacted, 'go on');
  expect(model.calls).toHaveLength(7);
  expect(checkExact(model)).toBe(4);
  expect(model.calls.every(({ tokens }) => tokens.at(-1) === EOS)).toBe(true);
});
