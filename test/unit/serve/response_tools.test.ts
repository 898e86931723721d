import { answerMessages } from '../../../ts/serve/anthropic/messages';
import { answerResponses } from '../../../ts/serve/openai/responses';
import { type Json, type Served, servers } from './served';

// What clients such as Codex send beside functions.

const serve = servers();

async function respond(s: Served, body: object): Promise<Json> {
  const answer = await answerResponses(s.model, body, new AbortController().signal);
  if ('body' in answer) return answer.body;
  const all: Json[] = [];
  for await (const { data } of answer.events) all.push(JSON.parse(data));
  return all;
}

const called = (name: string, x: object): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: x })}\n</tool_call>`;
const plain = { type: 'function', name: 'add', parameters: { type: 'object' } };
const patch = { type: 'custom', name: 'apply_patch', format: { type: 'grammar', definition: 'start: "x"' } };
const agents = {
  type: 'namespace',
  name: 'agents',
  description: 'others',
  tools: [{ ...plain, name: 'close' }],
};

test('a custom tool is called with a text, whole and in events', async () => {
  const said = [
    called('apply_patch', { input: '*** "a"\n+b' }),
    '<tool_call>\n{"name": "apply_patch", "arguments": {"x": 1}}\n</tool_call>',
  ];
  const s = await serve((_, index) => said[Math.min(index >> 1, 1)] as string, { family: 'hermes' });
  const body = { input: 'go', tools: [plain, patch] };
  for (const input of ['*** "a"\n+b', '{"x": 1}']) {
    const { output } = await respond(s, body);
    expect(output).toEqual([
      expect.objectContaining({ type: 'custom_tool_call', name: 'apply_patch', input, status: 'completed' }),
    ]);
    const events: Json[] = await respond(s, { ...body, stream: true });
    const of = (type: string): Json => events.find((event) => event.type === `response.${type}`);
    expect(of('output_item.added').item).toMatchObject({ type: 'custom_tool_call', input: '' });
    expect(of('custom_tool_call_input.delta').delta).toBe(input);
    expect(of('custom_tool_call_input.done').input).toBe(input);
    expect(of('output_item.done').item).toMatchObject({ type: 'custom_tool_call', input });
    expect(events.map(({ type }) => type)).not.toContain('response.function_call_arguments.delta');
  }
});

test('a tool of a namespace has one name to the model, and two to the client', async () => {
  const s = await serve(() => called('agents__close', { x: 1 }), { family: 'hermes' });
  const first = await respond(s, { input: 'go', tools: [plain, agents] });
  expect(s.prompt(0)).toMatch(/^\[add\]\[agents__close\]</);
  expect(first.output).toMatchObject([{ type: 'function_call', namespace: 'agents', name: 'close' }]);
  const events: Json[] = await respond(s, { input: 'go', tools: [agents], stream: true });
  const done = events.find(({ type }) => type === 'response.function_call_arguments.done');
  expect(done).toMatchObject({ name: 'close', arguments: '{"x":1}' });
  const back = [
    ...first.output,
    { type: 'function_call_output', call_id: first.output[0].call_id, output: 'closed' },
    { type: 'custom_tool_call', call_id: 'c', name: 'apply_patch', input: 'p' },
    { type: 'custom_tool_call_output', call_id: 'c', output: 'patched' },
  ];
  await respond(s, { input: [{ role: 'user', content: 'go' }, ...back], tools: [agents] });
  expect(s.prompt(2)).toContain('(agents__close 1)<tool>closed<assistant>(apply_patch )<tool>patched');
});

test('of tools that are not there those that clients always offer are left out', async () => {
  const s = await serve(() => 'ok', { family: 'hermes' });
  const offers = [
    { type: 'web_search', external_web_access: false },
    { type: 'web_search_preview_2025_03_11' },
  ];
  const { tools } = await respond(s, { input: 'go', tools: [...offers, plain] });
  expect(tools).toEqual([...offers, plain]);
  await respond(s, { input: 'go', tools: offers });
  expect([s.prompt(0), s.prompt(1)]).toEqual(['[add]<user>go<assistant>', '<user>go<assistant>']);
});

test.each([
  [[plain, { type: 'local_shell' }], 'tools.1.type', /expected one of function, custom, namespace/],
  [[{ type: 'toString' }], 'tools.0.type', /has no tools of its own/],
  [[{ ...agents, tools: [plain, { ...plain, name: '' }] }], 'tools.0.tools.1.name', /letters, digits/],
  [[{ ...plain, parameters: [] }], 'tools.0.parameters', /expected an object/],
  [[{ ...agents, tools: Array(512).fill(plain) }, plain], 'tools.1', /at most 512 tools/],
  [[agents, { ...plain, name: 'agents__close' }], 'tools.1.name', /another tool is "agents__close"/],
])('what is wrong with tools is told: %#', async (tools, param, message) => {
  const s = await serve(() => '', { family: 'hermes' });
  await expect(respond(s, { input: 'go', tools })).rejects.toMatchObject({
    status: 400,
    param,
    message: expect.stringMatching(message),
  });
});

test.each([
  [
    { type: 'additional_tools', tools: [] },
    'input.1.type',
    /message, function_call, .*, got "additional_tools"/,
  ],
  [{ type: 'toString' }, 'input.1.type', /expected one of/],
  [{ type: 'function_call', call_id: 'c', name: 'x' }, 'input.1.arguments', /expected string/],
  [{ type: 'custom_tool_call', call_id: 'c', name: 'x' }, 'input.1.input', /expected string/],
  [{ role: 'nobody', content: '' }, 'input.1.role', /"system"/],
])('%j among the items is refused at %s', async (item, param, message) => {
  const s = await serve(() => '');
  const input = [{ role: 'user', content: 'go' }, item];
  await expect(respond(s, { input })).rejects.toMatchObject({
    status: 400,
    param,
    message: expect.stringMatching(message),
  });
});

test('a choice names the namespace', async () => {
  const s = await serve(() => called('agents__close', {}), { family: 'hermes', grammars: 'engine' });
  const choose = (choice: object): Promise<Json> =>
    respond(s, { input: 'go', tools: [plain, agents], tool_choice: { type: 'function', ...choice } });
  expect((await choose({ namespace: 'agents', name: 'close' })).output).toMatchObject([{ name: 'close' }]);
  expect(JSON.stringify(s.engine.requests[0]?.grammar)).toContain('agents__close');
  await expect(choose({ name: 'close' })).rejects.toMatchObject({ param: 'tool_choice.name' });
});

test('instructions in several messages are one', async () => {
  const s = await serve(() => 'ok', { family: 'hermes' });
  const say = (role: string, content: string): object => ({ role, content });
  const input = [
    say('developer', 'two'),
    say('system', 'three'),
    say('user', 'go'),
    say('developer', 'late'),
  ];
  await respond(s, { instructions: 'one', input });
  const messages = [say('system', 'two'), say('user', 'go')];
  const body = { max_tokens: 5, system: 'one', messages };
  await answerMessages(s.model, body, new AbortController().signal);
  expect([s.prompt(0), s.prompt(1)]).toEqual([
    '<system>one\n\ntwo\n\nthree<user>go<system>late<assistant>',
    '<system>one\n\ntwo<user>go<assistant>',
  ]);
});
