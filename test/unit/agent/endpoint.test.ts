import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { z } from 'zod';
import { type Agent, defineAgent } from '../../../ts/agent/define';
import { SessionServer } from '../../../ts/agent/endpoint/session_server';
import { toolAgent } from '../../../ts/agent/loops/tool_agent';
import { defineTool, type Tool, ToolResult } from '../../../ts/agent/tools/tool';
import { joinCalls } from '../../../ts/agent/trajectory/sequences';
import {
  add,
  type Block,
  limits,
  post,
  run,
  schema,
  sessions,
  task,
  tokenizer,
  words,
} from './endpoint_world';

afterAll(() => sessions.close());

describe('the tool agent', () => {
  test('calls a tool, reads its answer and ends', async () => {
    const trajectory = await run(toolAgent(limits));
    expect(trajectory).toMatchObject({ answer: 'It is 42.', error: null });
    expect(trajectory.toolUses).toMatchObject([
      { name: 'add', call: 0, arguments: { a: 17, b: 25 }, observation: '42', error: null },
    ]);
    expect(joinCalls(trajectory.calls)).toHaveLength(1);
    expect(trajectory.record.map(({ role }) => role)).toEqual(['assistant', 'tool', 'assistant']);
  });

  test.each([
    ['max_assistant_turns', { maxAssistantTurns: 1 }, 1],
    ['max_user_turns', { maxUserTurns: 2 }, 3],
    ['the length of the response', { maxResponseLength: 200 }, 2],
  ])('ends at %s', async (_, limit, calls) => {
    const again = (): string => '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 1}}</tool_call>';
    const trajectory = await run(toolAgent({ ...limits, ...limit }), { say: again });
    expect(trajectory.calls).toHaveLength(calls);
    const [sequence] = joinCalls(trajectory.calls);
    if ('maxResponseLength' in limit)
      expect((sequence?.tokens.length ?? 0) - (sequence?.promptLength ?? 0)).toBeLessThanOrEqual(200);
  });

  test('several calls of one response: as many as may be, at the same time', async () => {
    const running: number[] = [];
    let now = 0;
    const slow = defineTool({
      name: 'add',
      description: '',
      parameters: z.object({ a: z.number() }),
      run: async ({ a }) => {
        running.push(++now);
        await new Promise((resolve) => setTimeout(resolve, 20));
        now--;
        return a;
      },
    });
    const three = (prompt: string): string =>
      prompt.includes('tool_response')
        ? 'done'
        : [1, 2, 3].map((a) => `<tool_call>{"name": "add", "arguments": {"a": ${a}}}</tool_call>`).join('\n');
    const trajectory = await run(toolAgent({ ...limits, maxParallelCalls: 2 }), {
      tools: [slow],
      say: three,
    });
    expect(running).toEqual([1, 2]);
    expect(trajectory.toolUses.map(({ observation }) => observation).sort()).toEqual(['1', '2']);
  });

  test.each([
    [
      'a tool that is not there',
      '{"name": "sub", "arguments": {}}',
      /there is no tool "sub"; there are: add/,
    ],
    [
      'arguments that do not fit',
      '{"name": "add", "arguments": {"a": "x", "b": 1}}',
      /arguments\.a: .*number/,
    ],
  ])('%s is told to the model', async (_, call, expected) => {
    const say = (prompt: string): string =>
      prompt.includes('tool_response') ? 'sorry' : `<tool_call>${call}</tool_call>`;
    const trajectory = await run(toolAgent(limits), { say });
    expect(trajectory.toolUses[0]?.error).toMatch(expected);
    expect(tokenizer.decode(trajectory.calls[1]?.promptIds ?? [], { skipSpecialTokens: true })).toMatch(
      /Error when executing tool/,
    );
  });

  test('arguments that are nested without end are a matter of the model alone', async () => {
    const deep = `{"a": ${'['.repeat(5000)}${']'.repeat(5000)}}`;
    const say = (prompt: string): string =>
      prompt.includes('tool_response')
        ? 'sorry'
        : `<tool_call>{"name": "add", "arguments": ${deep}}</tool_call>`;
    const trajectory = await run(toolAgent({ ...limits, maxResponseLength: 50_000 }), {
      say,
      maxTokens: 60_000,
      maxNewTokens: 20_000,
    });
    expect(trajectory.error).toBeNull();
    expect(trajectory.toolUses[0]?.error).toMatch(
      /arguments are no JSON that can be read: nested more than 200/,
    );
    expect(words(trajectory)[1]).toBe('sorry');
  });

  test.each([
    ['hangs', () => new Promise(() => undefined), /no answer within 0.05 s/],
    ['throws', () => Promise.reject(new Error('broken')), /broken/],
    [
      'gives a result without a text',
      () => new ToolResult({ sum: 3 } as never, 1),
      /ToolResult: expected a text/,
    ],
    [
      'gives a reward that is none',
      () => new ToolResult('3', Number.NaN),
      /and a finite number as reward, got/,
    ],
    ['tells 100 MB', () => 'x'.repeat(100 * 2 ** 20), null],
  ])('a tool that %s', async (_, work, expected) => {
    const bad = defineTool({
      name: 'add',
      description: '',
      parameters: z.object({}),
      timeout: 0.05,
      run: work,
    });
    const trajectory = await run(toolAgent(limits), { tools: [bad] });
    const [use] = trajectory.toolUses;
    if (expected) expect(use?.error).toMatch(expected);
    else
      expect(use).toMatchObject({
        error: null,
        observation: `${'x'.repeat(50)}...(truncated)...${'x'.repeat(50)}`,
      });
    expect(trajectory.error).toBeNull();
  });

  test('a tool that may take longer than a timer can wait has the time that it needs', async () => {
    const slow = defineTool({
      name: 'add',
      description: '',
      parameters: z.object({}),
      timeout: 1e7,
      run: () => new Promise((resolve) => setTimeout(resolve, 20, 42)),
    });
    const { toolUses } = await run(toolAgent(limits), { tools: [slow] });
    expect(toolUses).toMatchObject([{ observation: '42', error: null }]);
  });

  test('rows choose their tools, and give them arguments of their own', async () => {
    const seen: unknown[] = [];
    const other = defineTool({ name: 'other', description: '', parameters: z.object({}), run: () => '' });
    const told = defineTool({
      name: 'add',
      description: '',
      parameters: z.object({ a: z.number(), b: z.number() }),
      run: (_, { createKwargs }) => {
        seen.push(createKwargs);
        return 42;
      },
    });
    const one = task({
      tool_selection: ['add'],
      tools_kwargs: { add: { create_kwargs: { ground_truth: '42' } } },
    });
    const trajectory = await run(toolAgent(limits), { tools: [told, other], one });
    expect(seen).toEqual([{ ground_truth: '42' }]);
    expect(tokenizer.decode(trajectory.calls[0]?.promptIds ?? [], { skipSpecialTokens: true })).not.toContain(
      'other',
    );
  });

  test('tools that a row does not choose cannot be called; those that it chooses are in its order', async () => {
    const made = (name: string) =>
      defineTool({ name, description: '', parameters: z.object({}), run: () => `${name} ran` });
    const [a, b, c] = ['a', 'b', 'c'].map(made) as [Tool, Tool, Tool];
    const say = (prompt: string) =>
      prompt.includes('<tool_response>') ? 'end' : '<tool_call>{"name": "b", "arguments": {}}</tool_call>';
    const played = async (selection: unknown) => {
      const one = task({ tool_selection: selection });
      const { toolUses, calls } = await run(toolAgent(limits), { tools: [a, b, c], say, one });
      const prompt = tokenizer.decode(calls[0]?.promptIds ?? [], { skipSpecialTokens: true });
      const offered = [...prompt.matchAll(/"name": "([abc])"/g)].map(([, name]) => name).join('');
      return [offered, toolUses[0]?.observation];
    };
    expect(await played(['c', 'none', 'a'])).toEqual([
      'ca',
      'Error when executing tool: there is no tool "b"; there are: c, a',
    ]);
    expect(await played(['b'])).toEqual(['b', 'b ran']);
    expect(await played([])).toEqual(['abc', 'b ran']);
    expect(await played(null)).toEqual(['abc', 'b ran']);
  });
});

interface StreamEvent {
  type: string;
  index: number;
  content_block?: Block;
  delta?: Record<string, string>;
}

async function eventsOf(response: Response): Promise<Block[]> {
  const text = await response.text();
  return text
    .split('\n')
    .filter((line) => line.startsWith('data: {'))
    .map((line) => JSON.parse(line.slice(6)));
}

describe.each([
  ['by base URL', (base: string) => base],
  ['by key', (base: string) => base.replace(/\/s\/[^/]+/, '')],
])('a session %s', (_, where) => {
  /** The same two turns in each dialect. */
  const twoTurns = (name: string, stream: boolean): Agent =>
    defineAgent({
      run: async (_task, { endpoint }) => {
        const { openaiBaseUrl, anthropicBaseUrl, apiKey } = await endpoint();
        const openai = where(openaiBaseUrl);
        const user = 'What is 17 + 25?';
        if (name === 'chat') {
          const tools = [{ type: 'function', function: { name: 'add', parameters: schema } }];
          const ask = async (messages: unknown[]): Promise<Block> => {
            const response = await post(`${openai}/chat/completions`, apiKey, {
              model: 'gpt-x',
              messages,
              tools,
            });
            return ((await response.json()) as { choices: [{ message: Block }] }).choices[0].message;
          };
          const first = await ask([{ role: 'user', content: user }]);
          const [call] = first['tool_calls'] as { id: string }[];
          const second = await ask([
            { role: 'user', content: user },
            first,
            { role: 'tool', tool_call_id: call?.id, content: '42' },
          ]);
          return { answer: second['content'] as string };
        }
        if (name === 'responses') {
          const tools = [{ type: 'function', name: 'add', parameters: schema, strict: false }];
          const ask = async (input: unknown): Promise<Block[]> => {
            const response = await post(`${openai}/responses`, apiKey, {
              model: 'gpt-x',
              input,
              tools,
              stream,
              store: false,
            });
            if (!stream) return ((await response.json()) as { output: Block[] }).output;
            const events = await eventsOf(response);
            expect(events.map(({ sequence_number }) => sequence_number)).toEqual([...events.keys()]);
            const done = events.at(-1) as { type: string; response: { output: Record<string, unknown>[] } };
            expect(done.type).toBe('response.completed');
            return done.response.output;
          };
          const first = await ask(user);
          const call = first.find(({ type }) => type === 'function_call') as Record<string, string>;
          expect(JSON.parse(call['arguments'] as string)).toEqual({ a: 17, b: 25 });
          const [message] = await ask([
            { role: 'user', content: user },
            ...first,
            { type: 'function_call_output', call_id: call['call_id'], output: '42' },
          ]);
          return { answer: ((message as Block)['content'] as [{ text: string }])[0].text };
        }
        const tools = [{ name: 'add', input_schema: schema }];
        const ask = async (messages: unknown[]): Promise<Block[]> => {
          const response = await post(`${where(anthropicBaseUrl)}/v1/messages`, apiKey, {
            model: 'claude-x',
            max_tokens: 100_000,
            messages,
            tools,
            stream,
          });
          if (!stream) return ((await response.json()) as { content: Block[] }).content;
          const events = await eventsOf(response);
          expect(events[0]).toMatchObject({ type: 'message_start' });
          expect(events.at(-1)).toMatchObject({ type: 'message_stop' });
          const blocks: Block[] = [];
          for (const { type, index, content_block, delta } of events as unknown as StreamEvent[]) {
            if (type === 'content_block_start') blocks[index] = { ...content_block, json: '' };
            const block = blocks[index] as Record<string, string>;
            if (delta?.['text'] !== undefined) block['text'] += delta['text'];
            if (delta?.['partial_json'] !== undefined) block['json'] += delta['partial_json'];
          }
          return blocks.map((block) =>
            block['type'] === 'tool_use' ? { ...block, input: JSON.parse(block['json'] as string) } : block,
          );
        };
        const first = await ask([{ role: 'user', content: user }]);
        const use = first.find(({ type }) => type === 'tool_use') as Record<string, unknown>;
        expect(use['input']).toEqual({ a: 17, b: 25 });
        const [text] = await ask([
          { role: 'user', content: user },
          { role: 'assistant', content: first.map(({ json: _json, ...block }) => block) },
          { role: 'user', content: [{ type: 'tool_result', tool_use_id: use['id'], content: '42' }] },
        ]);
        return { answer: text?.['text'] as string };
      },
    });

  test.each([
    ['chat', false],
    ['responses', false],
    ['responses', true],
    ['messages', false],
    ['messages', true],
  ])('%s, streaming %s: one sequence, the same ids as the built-in agent', async (name, stream) => {
    const built = await run(toolAgent(limits), { tools: [{ ...add, description: '', parameters: schema }] });
    const trajectory = await run(twoTurns(name, stream));
    expect(trajectory.error).toBeNull();
    expect(trajectory.answer).toBe('It is 42.');
    expect(words(trajectory)).toEqual(words(built));
    expect(joinCalls(trajectory.calls)).toHaveLength(1);
  });
});

describe('sessions end with their trajectory', () => {
  test('calls afterwards are refused', async () => {
    let base = '';
    await run(
      defineAgent({
        run: async (_, { endpoint }) => {
          base = (await endpoint()).openaiBaseUrl;
        },
      }),
    );
    const response = await post(`${base}/chat/completions`, 'none', {
      messages: [{ role: 'user', content: 'x' }],
    });
    expect(response.status).toBe(401);
    expect(await response.json()).toMatchObject({
      error: { message: expect.stringMatching(/no such session/) },
    });
  });

  test('one that cannot be opened costs its trajectory, and not the run', async () => {
    // An address of documentation, which no machine has.
    const server = new SessionServer('192.0.2.1');
    const asking = defineAgent({ run: async (_, { endpoint }) => ({ answer: (await endpoint()).apiKey }) });
    expect((await run(asking, { server })).error).toMatch(/port 0 on 192\.0\.2\.1 .*EADDRNOTAVAIL/);
    await server.close();
  });

  test('one that could not be opened for want of a file descriptor can be later', () => {
    const program = ['register_ts.js', 'agents/starved_sessions.ts'].map((name) =>
      join(__dirname, '../../helpers', name),
    );
    const limited = ['-c', 'ulimit -n 64; exec "$@"', 'sh', process.execPath, '-r', ...program];
    const { stdout, stderr } = spawnSync('/bin/sh', limited, { encoding: 'utf8' });
    const starved = expect.stringMatching(/EMFILE/);
    expect({ stderr, said: JSON.parse(stdout) }).toEqual({ stderr: '', said: [starved, starved, 'open'] });
  });

  test('what is no request is refused with its field', async () => {
    const trajectory = await run(
      defineAgent({
        run: async (_, { endpoint }) => {
          const { openaiBaseUrl, anthropicBaseUrl, apiKey } = await endpoint();
          const errors = await Promise.all([
            post(`${openaiBaseUrl}/responses`, apiKey, { input: [{ type: 'function_call_output' }] }),
            post(`${openaiBaseUrl}/responses`, apiKey, { input: 'x', previous_response_id: 'resp_1' }),
            post(`${anthropicBaseUrl}/v1/messages`, apiKey, {
              messages: [{ role: 'user', content: [{ type: 'image' }] }],
              max_tokens: 1,
            }),
            post(`${openaiBaseUrl}/embeddings`, apiKey, {}),
            fetch(`${openaiBaseUrl}/chat/completions`),
          ]);
          return { answer: errors.map(({ status }) => status).join(' ') };
        },
      }),
    );
    expect(trajectory.answer).toBe('400 400 400 404 405');
  });

  test('clients that ask for the models, or how long a prompt is, take no turn', async () => {
    const trajectory = await run(
      defineAgent({
        run: async (_, { endpoint }) => {
          const { openaiBaseUrl, anthropicBaseUrl, apiKey } = await endpoint();
          const headers = { authorization: `Bearer ${apiKey}` };
          const body = { model: 'any', messages: [{ role: 'user', content: 'hello' }] };
          const answers = await Promise.all([
            fetch(`${openaiBaseUrl}/models`),
            fetch(`${new URL(openaiBaseUrl).origin}/v1/models`, { headers }),
            post(`${anthropicBaseUrl}/v1/messages/count_tokens`, apiKey, body),
          ]);
          expect(answers.map(({ status }) => status)).toEqual([200, 200, 200]);
          const [models, byKey, counted] = await Promise.all(answers.map((one) => one.json()));
          expect(models).toMatchObject({ object: 'list', data: [{ object: 'model' }] });
          expect(byKey).toEqual(models);
          const asked = await post(`${anthropicBaseUrl}/v1/messages`, apiKey, { ...body, max_tokens: 99 });
          const { usage } = (await asked.json()) as { usage: { input_tokens: number } };
          expect(counted).toEqual({ input_tokens: usage.input_tokens });
          return { answer: 'ok' };
        },
      }),
    );
    expect(trajectory).toMatchObject({ error: null, answer: 'ok' });
    expect(trajectory.calls).toHaveLength(1);
  });
});
