// `troupe serve` with a model of random weights, and the clients that people have.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { resolve } from 'node:path';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { Command } from '../helpers/e2e_process';
import { Workspace } from '../helpers/e2e_workspace';
import { announced, ask, client as clientOf, OPTIONS, writeServedModel } from '../helpers/serve/served_model';

/** With the official client, where it is installed; it is no part of the project. */
const PYTHON = process.env['TROUPE_TEST_OPENAI_PYTHON'] ?? 'python3';
const hasPython = spawnSync(PYTHON, ['-c', 'import openai']).status === 0;

let workspace: Workspace;
let server: Command;
let url: string;

/** Shows tools, calls and results as Hermes does. */
const TEMPLATE =
  '{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}' +
  '{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}' +
  '{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}' +
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}';

beforeAll(async () => {
  workspace = await Workspace.create();
  await writeServedModel(workspace.file('model'));
  writeFileSync(workspace.file('template.jinja'), TEMPLATE);
  const template = ['--chat-template', workspace.file('template.jinja')];
  server = new Command(['serve', workspace.file('model'), ...OPTIONS, ...template], { endedByFile: true });
  url = await announced(server);
});
afterAll(async () => {
  server.kill('SIGTERM');
  const { code, stderr } = await server.exited;
  workspace.remove();
  expect([code, stderr]).toEqual([0, expect.stringContaining('SIGTERM: ending once what runs is done')]);
});

const client = (): OpenAI => clientOf(url);

test('the openai package: whole, streamed, several choices', async () => {
  const whole = await client().chat.completions.create(ask);
  const text = whole.choices[0]?.message.content;
  expect(text).toMatch(/./);
  let streamed = '';
  let usage: unknown = null;
  const stream = await client().chat.completions.create({
    ...ask,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta.content ?? '';
    usage = chunk.usage ?? usage;
  }
  expect(streamed).toBe(text);
  expect(usage).toMatchObject({
    prompt_tokens: whole.usage?.prompt_tokens,
    completion_tokens: whole.usage?.completion_tokens,
  });
  const sampled = { ...ask, temperature: 1, n: 4 };
  const [first, second] = [
    await client().chat.completions.create(sampled),
    await client().chat.completions.create(sampled),
  ];
  const texts = ({ choices }: typeof first): (string | null)[] =>
    choices.map(({ message }) => message.content);
  expect(texts(second)).toEqual(texts(first));
  expect(new Set(texts(first)).size).toBe(4);
});

test('the openai package: responses, and the package of Anthropic: messages', async () => {
  const { choices } = await client().chat.completions.create(ask);
  const text = choices[0]?.message.content;
  const input = { model: 'tiny', input: 'hello', max_output_tokens: 24, temperature: 0 };
  const whole = await client().responses.create(input);
  expect([whole.output_text, whole.status]).toEqual([text, 'incomplete']);
  const stream = client().responses.stream(input);
  expect((await stream.finalResponse()).output_text).toBe(text);
  const anthropic = new Anthropic({ baseURL: url, apiKey: 'secret' });
  const { seed: _, ...body } = ask;
  const message = await anthropic.messages.create(body);
  expect(message).toMatchObject({ content: [{ type: 'text', text }], stop_reason: 'max_tokens' });
  expect(await anthropic.messages.stream(body).finalText()).toBe(text);
  const { input_tokens } = await anthropic.messages.countTokens({ model: 'tiny', messages: ask.messages });
  expect(input_tokens).toBe(message.usage.input_tokens + (message.usage.cache_read_input_tokens ?? 0));
  const wrong = new Anthropic({ baseURL: url, apiKey: 'wrong' }).messages.create(body);
  await expect(wrong).rejects.toBeInstanceOf(Anthropic.AuthenticationError);
});

test('the openai package: log-probs, completions, models', async () => {
  const { choices } = await client().chat.completions.create({ ...ask, logprobs: true });
  const entries = choices[0]?.logprobs?.content ?? [];
  expect(entries.length).toBe(24);
  // The greedy token of 257 has more than its share.
  expect(entries.every(({ logprob }) => logprob <= 0 && logprob > -Math.log(257))).toBe(true);
  expect(Buffer.from(entries.flatMap(({ bytes }) => bytes ?? [])).toString('utf8')).toBe(
    choices[0]?.message.content,
  );
  const completion = await client().completions.create({
    model: 'tiny',
    prompt: [104, 105],
    max_tokens: 5,
    temperature: 0,
  });
  expect(completion.usage).toMatchObject({ prompt_tokens: 2, completion_tokens: 5 });
  expect((await client().models.list()).data.map(({ id }) => id)).toEqual(['tiny']);
});

test('the openai package: JSON of a schema, and a tool that must be called', async () => {
  const properties = { name: { type: 'string', maxLength: 6 }, ok: { type: 'boolean' } };
  const schema = { type: 'object', properties, required: ['name', 'ok'], additionalProperties: false };
  const sampled = { ...ask, temperature: 1, max_tokens: 200 };
  for (const seed of [1, 2, 3]) {
    const { choices } = await client().chat.completions.create({
      ...sampled,
      seed,
      response_format: { type: 'json_schema', json_schema: { name: 'person', schema, strict: true } },
    });
    const person = JSON.parse(choices[0]?.message.content ?? '');
    expect([Object.keys(person), typeof person.ok, choices[0]?.finish_reason]).toEqual([
      ['name', 'ok'],
      'boolean',
      'stop',
    ]);
  }
  const parameters = { type: 'object', properties: { x: { enum: ['a', 'b'] } }, required: ['x'] };
  const stream = await client().chat.completions.create({
    ...sampled,
    stream: true,
    tools: [{ type: 'function', function: { name: 'pick', parameters } }],
    tool_choice: 'required',
  });
  let name = '';
  for await (const { choices } of stream) name += choices[0]?.delta.tool_calls?.[0]?.function?.name ?? '';
  expect(name).toMatch(/^(pick)+$/);
  const wrong = { type: 'json_schema' as const, json_schema: { name: 'x', schema: { type: 'frob' } } };
  await expect(client().chat.completions.create({ ...ask, response_format: wrong })).rejects.toMatchObject({
    status: 400,
  });
});

test('the openai package: a call of a tool, its result, and the answer', async () => {
  const properties = {
    city: { type: 'string', maxLength: 8 },
    unit: { enum: ['C', 'F'] },
    days: { type: 'array', items: { enum: [1, 2, 3] }, maxItems: 3 },
  };
  const parameters = { type: 'object', properties, required: ['city', 'unit'], additionalProperties: false };
  const tools = [{ type: 'function' as const, function: { name: 'weather', parameters } }];
  for (const seed of [1, 2, 3]) {
    const demand = {
      ...ask,
      seed,
      temperature: 1,
      max_tokens: 200,
      tools,
      tool_choice: { type: 'function' as const, function: { name: 'weather' } },
    };
    const [whole, streamed] = [
      (await client().chat.completions.create(demand)).choices[0],
      (await client().chat.completions.stream(demand).finalChatCompletion()).choices[0],
    ];
    const [call] = whole?.message.tool_calls ?? [];
    if (whole === undefined || call?.type !== 'function') throw new Error('expected a call of a function');
    expect([whole.finish_reason, whole.message.content, call.function.name]).toEqual([
      'tool_calls',
      null,
      'weather',
    ]);
    const given = JSON.parse(call.function.arguments);
    expect(Object.keys(given).every((key) => key in properties)).toBe(true);
    expect([typeof given.city, properties.unit.enum.includes(given.unit)]).toEqual(['string', true]);
    expect(streamed).toMatchObject({
      finish_reason: 'tool_calls',
      message: { tool_calls: [{ type: 'function', function: { ...call.function } }] },
    });

    const result = { role: 'tool' as const, tool_call_id: call.id, content: 'sunny' };
    const after = {
      ...ask,
      tools,
      messages: [...ask.messages, whole.message, result],
      return_token_ids: true,
    };
    const answer = await client().chat.completions.create(after);
    const ids = (answer as unknown as { prompt_token_ids: number[] }).prompt_token_ids;
    const prompt = Buffer.from(ids.filter((id) => id < 256)).toString('utf8');
    const [, written = ''] =
      /<tool_call>(.*)<\/tool_call>\n<\|im_start\|>tool\nsunny\n<\|im_start\|>assistant\n$/.exec(prompt) ??
      [];
    expect(JSON.parse(written)).toEqual({ name: 'weather', arguments: given });
    const text = answer.choices[0]?.message.content;
    expect(text).toMatch(/./);
    expect(await client().chat.completions.stream(after).finalContent()).toBe(text);
  }
});

test('a prompt that has come before is found in the cache, also when nothing has run meanwhile', async () => {
  const long = { ...ask, messages: [{ role: 'user' as const, content: 'The same again. '.repeat(20) }] };
  const cached = async (): Promise<number | undefined> =>
    (await client().chat.completions.create(long)).usage?.prompt_tokens_details?.cached_tokens;
  expect(await cached()).toBeLessThan(32);
  expect(await cached()).toBeGreaterThan(300);
});

test('the openai package: errors', async () => {
  const wrong = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'wrong', maxRetries: 0 });
  await expect(wrong.models.list()).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
  await expect(client().chat.completions.create({ ...ask, model: 'other' })).rejects.toBeInstanceOf(
    OpenAI.NotFoundError,
  );
  await expect(client().chat.completions.create({ ...ask, max_tokens: 4000 })).rejects.toMatchObject({
    status: 400,
    code: 'context_length_exceeded',
  });
});

test('two hundred requests at a time', async () => {
  const answers = await Promise.all(
    Array.from({ length: 200 }, async (_, i) => {
      const stream = await client().chat.completions.create({
        ...ask,
        seed: i % 4,
        temperature: 1,
        stream: true,
      });
      let text = '';
      for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
      return text;
    }),
  );
  expect(new Set(answers).size).toBe(4);
});

test('a reader that reads nothing for a while stops nobody, and misses nothing', async () => {
  const { hostname, port } = new URL(url);
  const body = JSON.stringify({
    ...ask,
    max_tokens: 900,
    temperature: 1,
    n: 16,
    ignore_eos: true,
    stream: true,
    logprobs: true,
    top_logprobs: 20,
  });
  const socket = connect(Number(port), hostname);
  const head = `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n`;
  socket.write(`${head}connection: close\r\ncontent-length: ${body.length}\r\n\r\n${body}`);
  // The stream has begun.
  await once(socket, 'readable');
  for (let i = 0; i < 3; i++) {
    let text = '';
    const stream = await client().chat.completions.create({ ...ask, stream: true });
    for await (const { choices } of stream) text += choices[0]?.delta.content ?? '';
    expect(text).toMatch(/./);
  }
  expect(socket.bytesRead).toBeLessThan(1_000_000);
  let [bytes, end] = [0, ''];
  socket.on('data', (chunk) => {
    bytes += chunk.length;
    end = end.slice(-100) + chunk.toString('latin1');
  });
  await once(socket.resume(), 'end');
  // Far more than what the system keeps for a reader.
  expect(bytes).toBeGreaterThan(15_000_000);
  expect(end).toContain('data: [DONE]');
});

/** What a program prints; the test goes on meanwhile. */
function output(program: string, args: readonly string[]): Promise<string> {
  return new Promise((done, fail) => {
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    let [out, error] = ['', ''];
    child.stdout.on('data', (text) => {
      out += text;
    });
    child.stderr.on('data', (text) => {
      error += text;
    });
    child.on('close', (code) => (code === 0 ? done(out) : fail(new Error(error))));
  });
}

const helper = (name: string): string => resolve(__dirname, '../helpers/serve', name);

test('the AI SDK', async () => {
  const answer = JSON.parse(await output(process.execPath, [helper('ai_sdk_client.mjs'), url]));
  const { choices, usage } = await client().chat.completions.create(ask);
  const counts = [usage?.prompt_tokens, usage?.completion_tokens];
  const text = choices[0]?.message.content;
  expect(answer).toEqual({
    whole: text,
    streamed: text,
    finish: 'length',
    usage: counts,
    streamedUsage: counts,
  });
});

const withPython = hasPython ? test : test.skip;
withPython('the openai package of Python (skipped where python3 has none)', async () => {
  const answer = JSON.parse(await output(PYTHON, [helper('openai_client.py'), url]));
  const { choices } = await client().chat.completions.create(ask);
  const text = choices[0]?.message.content;
  expect(answer).toMatchObject({
    whole: text,
    streamed: text,
    finish: 'length',
    models: ['tiny'],
    refused: true,
  });
});
