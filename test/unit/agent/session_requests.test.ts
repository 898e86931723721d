// What the field's clients ask of a session beside messages: to go on from a response, and calls that are demanded.
import { type Agent, defineAgent } from '../../../ts/agent/define';
import type { Session } from '../../../ts/agent/endpoint/session_server';
import { toolAgent } from '../../../ts/agent/loops/tool_agent';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import type { Trajectory } from '../../../ts/agent/trajectory/trajectory';
import type { RolloutRequest } from '../../../ts/rollout/request';
import type { ScriptedEngine } from '../../helpers/scripted_engine';
import { speaking } from './chat_world';
import { add, type Block, limits, post, run, schema, sessions, speak, tokenizer } from './endpoint_world';

afterAll(() => sessions.close());

test('likeliest tokens come where they are asked for; how tokens are drawn stays the run’s matter', async () => {
  const engine = speaking(tokenizer, () => 'yes') as ScriptedEngine;
  const agent = defineAgent({
    run: async (_task, { endpoint }) => {
      const { openaiBaseUrl, apiKey } = await endpoint();
      const body = {
        messages: [{ role: 'user', content: 'x' }],
        logprobs: true,
        top_logprobs: 2,
        temperature: 0.1,
      };
      expect((await post(`${openaiBaseUrl}/chat/completions`, apiKey, body)).status).toBe(200);
      return 1;
    },
  });
  expect((await run(agent, { engine })).error).toBeNull();
  const [{ sampling }] = engine.requests as [RolloutRequest];
  expect([sampling.topLogProbs, sampling.temperature]).toEqual([2, undefined]);
});

describe('previous_response_id', () => {
  const tools = [{ type: 'function', name: 'add', description: '', parameters: schema }];
  const output = (id: unknown): Block[] => [{ type: 'function_call_output', call_id: id, output: '42' }];
  type Reply = { id: string; output: Block[]; previous_response_id: string | null; error?: { code: string } };

  /** Two turns, the second one with what `second` makes of the first. */
  const asking = (first: Block, second: (reply: Reply) => Block): Agent =>
    defineAgent({
      run: async (_task, { endpoint }) => {
        const { openaiBaseUrl, apiKey } = await endpoint();
        const ask = async (body: Block): Promise<Reply> =>
          (await (await post(`${openaiBaseUrl}/responses`, apiKey, { tools, ...body })).json()) as Reply;
        const one = await ask({ input: 'What is 17 + 25?', ...first });
        const two = await ask(second(one));
        if (two.error) return { answer: two.error.code };
        expect(two.previous_response_id).toBe(one.id);
        return { answer: ((two.output[0] as Block)['content'] as [{ text: string }])[0].text };
      },
    });
  const callId = ({ output: items }: Reply): unknown =>
    items.find(({ type }) => type === 'function_call')?.['call_id'];

  test('goes on from a response of the session: the same ids as the built-in agent', async () => {
    const built = await run(toolAgent(limits), { tools: [{ ...add, description: '', parameters: schema }] });
    const next = (one: Reply): Block => ({ input: output(callId(one)), previous_response_id: one.id });
    const trajectory = await run(asking({}, next));
    expect(trajectory).toMatchObject({ error: null, answer: 'It is 42.' });
    const ids = ({ calls }: Trajectory): number[][] => calls.map(({ promptIds }) => [...promptIds]);
    expect(ids(trajectory)).toEqual(ids(built));
    expect(joinCalls(trajectory.calls)).toHaveLength(1);
  });

  test('instructions do not carry over', async () => {
    const next = (one: Reply): Block => ({ input: output(callId(one)), previous_response_id: one.id });
    const { calls } = await run(asking({ instructions: 'Be brief.' }, next));
    const [first, second] = calls.map(({ promptIds }) =>
      tokenizer.decode(promptIds, { skipSpecialTokens: true }),
    );
    expect(first).toContain('Be brief.');
    expect(second).not.toContain('Be brief.');
    expect(second).toContain('17 + 25');
  });

  test.each([
    ['one that was not to be stored', { store: false }, (one: Reply) => one.id],
    ['one of somebody else', {}, () => 'resp_1'],
  ])('%s is refused', async (_, first, id) => {
    const next = (one: Reply): Block => ({ input: output('x'), previous_response_id: id(one) });
    const trajectory = await run(asking(first, next));
    expect(trajectory.answer).toBe('previous_response_not_found');
  });
});

describe('a call that is demanded', () => {
  const chat = (choice: unknown): Block => ({
    messages: [{ role: 'user', content: 'x' }],
    tools: [{ type: 'function', function: { name: 'add', parameters: schema } }],
    tool_choice: choice,
  });
  const responses = (choice: unknown): Block => ({
    input: 'x',
    tools: [{ type: 'function', name: 'add', parameters: schema }],
    tool_choice: choice,
  });
  const messages = (choice: unknown): Block => ({
    max_tokens: 100,
    messages: [{ role: 'user', content: 'x' }],
    tools: [{ name: 'add', input_schema: schema }],
    tool_choice: choice,
  });
  /** The statuses of requests of one session, and what the engine was asked for. */
  const ask = async (path: string, bodies: unknown[]): Promise<[number[], RolloutRequest[]]> => {
    const requests: RolloutRequest[] = [];
    const statuses: number[] = [];
    const engine = speaking(tokenizer, speak);
    const submit = engine.submit.bind(engine);
    engine.submit = (request) => {
      requests.push(request);
      return submit(request);
    };
    const agent = defineAgent({
      run: async (_task, { endpoint }) => {
        const { anthropicBaseUrl, apiKey } = await endpoint();
        for (const body of bodies)
          statuses.push((await post(`${anthropicBaseUrl}/v1/${path}`, apiKey, body)).status);
      },
    });
    await run(agent, { engine, grammars: 'engine' });
    return [statuses, requests];
  };

  test.each([
    ['chat/completions', chat, 'required', { type: 'function', function: { name: 'add' } }],
    ['responses', responses, 'required', { type: 'function', name: 'add' }],
    ['messages', messages, { type: 'any' }, { type: 'tool', name: 'add' }],
  ])('%s: by a grammar of its tools', async (path, body, required, named) => {
    const [statuses, requests] = await ask(path, [body(required), body(named)]);
    expect(statuses).toEqual([200, 200]);
    for (const { grammar } of requests) {
      expect(grammar).toMatchObject({ kind: 'structural-tag' });
      expect((grammar as { tag: string }).tag).toContain('\\"name\\": \\"add\\"');
    }
  });

  test.each([
    ['chat/completions', chat, [{ type: 'function', function: { name: 'sub' } }]],
    ['responses', responses, [{ type: 'function', name: 'sub' }]],
    ['messages', messages, [{ type: 'tool', name: 'sub' }, { type: 'tool' }]],
  ])('%s: of a tool that is not there is refused', async (path, body, choices) => {
    const [statuses, requests] = await ask(
      path,
      choices.map((choice) => body(choice)),
    );
    expect(new Set(statuses)).toEqual(new Set([400]));
    expect(requests).toEqual([]);
  });
});

test.each([
  ['messages', { type: 'error', error: { type: 'authentication_error', message: expect.any(String) } }],
  [
    'responses',
    {
      error: {
        message: expect.any(String),
        type: 'authentication_error',
        param: null,
        code: 'invalid_api_key',
      },
    },
  ],
])('an error is in the dialect of its path: %s', async (path, expected) => {
  const ended = await sessions.open({} as Session);
  ended.close();
  for (const base of [
    ended.address.anthropicBaseUrl,
    ended.address.anthropicBaseUrl.replace(/\/s\/.*/, ''),
  ]) {
    const response = await post(`${base}/v1/${path}`, ended.address.apiKey, {});
    expect([response.status, await response.json()]).toEqual([401, expected]);
  }
});
