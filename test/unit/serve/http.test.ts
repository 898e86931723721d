import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { TroupeError } from '../../../ts/errors';
import { ModelServer } from '../../../ts/serve/model_server';
import { sendAll } from '../../helpers/send_all';
import { post, served, servers, until } from './served';

const chat = '/v1/chat/completions';
const ask = { messages: [{ role: 'user', content: 'go' }] };
const serve = servers();

test('only those with a key are let in', async () => {
  const s = await serve(() => 'yes', { server: { apiKeys: ['secret', 'other'] } });
  const status = async (headers: Record<string, string>): Promise<number> =>
    (await post(s.url, chat, ask, headers)).status;
  expect(await status({})).toBe(401);
  expect(await status({ authorization: 'Bearer secre' })).toBe(401);
  expect(await status({ authorization: 'Bearer secret' })).toBe(200);
  expect(await status({ 'x-api-key': 'other' })).toBe(200);
  const { text, headers } = await post(s.url, chat, ask, { authorization: 'Bearer wrong' });
  expect(headers.get('www-authenticate')).toBe('Bearer');
  expect(JSON.parse(text).error).toMatchObject({ type: 'authentication_error', code: 'invalid_api_key' });
  expect((await fetch(`${s.url}/v1/models`)).status).toBe(401);
  expect((await fetch(`${s.url}/nothing`)).status).toBe(401);
  expect((await fetch(`${s.url}/health`)).status).toBe(200);
});

test('models, health, metrics, and what is not there', async () => {
  const s = await serve(() => 'four');
  await post(s.url, chat, ask);
  const get = async (path: string) => {
    const response = await fetch(s.url + path);
    return { status: response.status, headers: response.headers, text: await response.text() };
  };
  expect(JSON.parse((await get('/v1/models')).text).data).toEqual([
    { id: 'tiny', object: 'model', created: 1, owned_by: 'troupe', max_model_len: 4096 },
  ]);
  expect((await get('/v1/models/tiny')).status).toBe(200);
  expect((await get('/v1/models/%zz')).status).toBe(404);
  expect(JSON.parse((await get('/health')).text)).toEqual({ status: 'ok', weight_version: 3 });
  const metrics = (await get('/metrics')).text;
  expect(metrics).toMatch(/^troupe_serve_tokens_total\{kind="response"\} 5$/m);
  expect(metrics).toMatch(/^troupe_serve_requests_total\{path="\/v1\/chat\/completions",status="200"\} 1$/m);
  expect(metrics).toMatch(/^troupe_serve_cache_positions_used 16$/m);
  expect((await get('/v1/nothing')).status).toBe(404);
  const wrong = await get(chat);
  expect([wrong.status, wrong.headers.get('allow')]).toEqual([405, 'POST']);
});

test('responses and messages are served, each with errors of its own kind', async () => {
  const s = await serve(() => 'four');
  const responses = await post(s.url, '/v1/responses', { model: 'tiny', input: 'two and two?' });
  expect(JSON.parse(responses.text).output).toMatchObject([{ content: [{ text: 'four' }] }]);
  const body = { messages: [{ role: 'user', content: 'two and two?' }] };
  const messages = await post(s.url, '/v1/messages', { ...body, max_tokens: 9 });
  expect(JSON.parse(messages.text).content).toEqual([{ type: 'text', text: 'four' }]);
  const counted = await post(s.url, '/v1/messages/count_tokens', body);
  expect(JSON.parse(counted.text)).toEqual({ input_tokens: s.prompt(1).length });
  const kept = await post(s.url, '/v1/responses', { input: 'x', previous_response_id: 'resp_1' });
  expect([kept.status, JSON.parse(kept.text).error.param]).toEqual([400, 'previous_response_id']);
  const wrong = await post(s.url, '/v1/messages', body);
  expect(wrong.status).toBe(400);
  expect(JSON.parse(wrong.text)).toMatchObject({ type: 'error', error: { type: 'invalid_request_error' } });
  const get = await fetch(`${s.url}/v1/messages`);
  expect([get.status, get.headers.get('allow')]).toEqual([405, 'POST']);
});

test('a target that names the server is the path behind that', async () => {
  const s = await serve(() => 'four');
  const { port } = new URL(s.url);
  const ask = async (target: string): Promise<string> => {
    const socket = connect(Number(port), '127.0.0.1');
    socket.write(`GET ${target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
    let got = '';
    for await (const chunk of socket) got += chunk;
    return got.split('\r\n')[0] as string;
  };
  expect(await ask('http://127.0.0.1:1/v1/models')).toBe('HTTP/1.1 200 OK');
  expect(await ask('HTTP://x/v1/models?limit=1')).toBe('HTTP/1.1 200 OK');
  expect(await ask('http://x')).toBe('HTTP/1.1 404 Not Found');
  expect(await ask('/http://x/v1/models')).toBe('HTTP/1.1 404 Not Found');
});

test('health is refused with the reason while the engine does not answer', async () => {
  const s = await serve(() => '');
  s.engine.stats = () => Promise.reject(new TroupeError('WORKER_DIED', 'worker 0 was killed'));
  const response = await fetch(`${s.url}/health`);
  const { error } = JSON.parse(await response.text());
  expect([response.status, error.message]).toEqual([503, 'the engine does not answer: worker 0 was killed']);
});

test('bodies are bounded and must be JSON', async () => {
  const s = await serve(() => '', { server: { maxBodyBytes: 1000 } });
  const large = await post(s.url, chat, { messages: [{ role: 'user', content: 'x'.repeat(1000) }] });
  expect([large.status, JSON.parse(large.text).error.code]).toEqual([413, 'request_too_large']);
  expect((await post(s.url, chat, '{"messages":')).status).toBe(400);
  expect((await post(s.url, chat, '['.repeat(400) + ']'.repeat(400))).status).toBe(400);
  const enough = new AbortController();
  const chunked = await fetch(s.url + chat, {
    method: 'POST',
    signal: enough.signal,
    body: new ReadableStream({
      pull: async (controller) => {
        await sleep(1);
        // Node 20's fetch asks on when it has been aborted, and keeps the process for it.
        if (enough.signal.aborted) controller.close();
        else controller.enqueue(new Uint8Array(400));
      },
    }),
    duplex: 'half',
  } as RequestInit);
  expect(chunked.status).toBe(413);
  enough.abort();
  const packed = await post(s.url, chat, '{}', { 'content-encoding': 'gzip' });
  expect([packed.status, packed.text]).toEqual([415, expect.stringContaining('not compressed')]);
});

test('a client that has sent all of a body before it reads learns why that was refused', async () => {
  const s = await serve(() => '', { server: { maxBodyBytes: 1000, apiKeys: ['secret'] } });
  const body = Buffer.alloc(30_000_000, 'x');
  const head = (path: string, ...more: string[]): string =>
    [`POST ${path} HTTP/1.1`, 'host: x', `content-length: ${body.length}`, ...more, '', ''].join('\r\n');
  const key = 'authorization: Bearer secret';
  expect(await sendAll(s.url, head(chat, key), body)).toBe('HTTP/1.1 413 Payload Too Large');
  expect(await sendAll(s.url, head(chat), body)).toBe('HTTP/1.1 401 Unauthorized');
  const chunked = head(chat, key).replace(/content-length: \d+/, 'transfer-encoding: chunked');
  const chunk = Buffer.concat([
    Buffer.from(`${body.length.toString(16)}\r\n`),
    body,
    Buffer.from('\r\n0\r\n\r\n'),
  ]);
  expect(await sendAll(s.url, chunked, chunk)).toBe('HTTP/1.1 413 Payload Too Large');
});

test('more requests than there may be are told to come again', async () => {
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  const s = await serve(() => 'x', { server: { maxRequests: 2 }, script: { pace: () => held } });
  const running = [post(s.url, chat, ask), post(s.url, chat, ask)];
  await until(() => s.engine.running === 2);
  const third = await post(s.url, chat, ask);
  expect([third.status, third.headers.get('retry-after')]).toEqual([429, '1']);
  release();
  expect((await Promise.all(running)).map(({ status }) => status)).toEqual([200, 200]);
});

test('a reader that goes takes its request with it', async () => {
  const s = await serve(() => 'x'.repeat(3000), { script: { pace: () => sleep(5) } });
  const controller = new AbortController();
  const body = JSON.stringify({ ...ask, stream: true });
  const response = await fetch(s.url + chat, { method: 'POST', body, signal: controller.signal });
  await response.body?.getReader().read();
  controller.abort();
  await until(() => s.engine.aborted === 1);
  // One that does not stream, too.
  const silent = new AbortController();
  const waiting = fetch(s.url + chat, { method: 'POST', body: JSON.stringify(ask), signal: silent.signal });
  await until(() => s.engine.running === 1);
  silent.abort();
  await expect(waiting).rejects.toThrow();
  await until(() => s.engine.aborted === 2 && s.engine.running === 0);
});

test('a client that goes takes with it what it has asked behind the answer that it was reading', async () => {
  const s = await serve(() => 'x'.repeat(3000), { script: { pace: () => sleep(5) } });
  const { hostname, port } = new URL(s.url);
  const asked = [{ ...ask, stream: true }, ask, { ...ask, stream: true }].map((one) => {
    const body = JSON.stringify(one);
    return `POST ${chat} HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
  });
  const socket = connect(Number(port), hostname, () => socket.write(asked.join('')));
  await until(() => s.engine.running === 3);
  socket.destroy();
  await until(() => s.engine.aborted === 3 && s.engine.running === 0);
  const counted = async (): Promise<boolean> =>
    /^troupe_serve_requests_total\{.*status="499"\} 3$/m.test(await (await fetch(`${s.url}/metrics`)).text());
  for (let i = 0; i < 500 && !(await counted()); i++) await sleep(10);
  expect(await counted()).toBe(true);
});

test('a client that leaves is counted as such, with the tokens that were made for it', async () => {
  const s = await serve(() => 'x'.repeat(3000), { script: { pace: () => sleep(5) } });
  const leave = async (stream: boolean): Promise<void> => {
    const left = new AbortController();
    const asked = s.engine.requests.length;
    const body = JSON.stringify({ ...ask, stream });
    const answer = fetch(s.url + chat, { method: 'POST', body, signal: left.signal });
    if (stream) {
      const reader = (await answer).body?.pipeThrough(new TextDecoderStream()).getReader();
      for (let read = ''; !read.includes('"content":"x'); ) read += (await reader?.read())?.value;
    } else await until(() => s.engine.requests.length > asked);
    left.abort();
    await answer.catch(() => undefined);
    await until(() => s.engine.running === 0);
  };
  await leave(true);
  await leave(false);
  const counted = async (name: string): Promise<number> => {
    const metrics = await (await fetch(`${s.url}/metrics`)).text();
    const line = metrics.split('\n').find((one) => one.startsWith(`troupe_serve_${name} `));
    return Number(line?.split(' ').at(-1));
  };
  expect(await counted(`requests_total{path="${chat}",status="499"}`)).toBe(2);
  expect(await counted('responses_total{reason="abort"}')).toBe(2);
  expect(await counted('tokens_total{kind="prompt"}')).toBe(2 * '<user>go<assistant>'.length);
  expect(await counted('tokens_total{kind="cached"}')).toBe(2 * 4);
  expect(await counted('tokens_total{kind="response"}')).toBeGreaterThan(0);
});

/** Asks for a stream and reads nothing of it. */
function readNothing(url: string): Promise<Socket> {
  const { hostname, port } = new URL(url);
  const body = JSON.stringify({ ...ask, stream: true, n: 8, logprobs: true, top_logprobs: 20 });
  return new Promise((resolve) => {
    const socket = connect(Number(port), hostname, () => {
      socket.pause();
      socket.write(`POST ${chat} HTTP/1.1\r\nhost: x\r\ncontent-length: ${body.length}\r\n\r\n${body}`, () =>
        resolve(socket),
      );
    });
    socket.on('error', () => undefined);
  });
}

test('a reader that reads nothing stops nobody, and is given up', async () => {
  const s = await serve((_, i) => (i < 8 ? 'x'.repeat(3500) : 'quick'), { server: { stallMs: 500 } });
  const socket = await readNothing(s.url);
  await until(() => s.engine.requests.length === 8);
  for (let i = 0; i < 5; i++)
    expect((await post(s.url, chat, { ...ask, stream: true })).text).toContain('[DONE]');
  const givenUp = async (): Promise<boolean> => {
    const metrics = await (await fetch(`${s.url}/metrics`)).text();
    return /^troupe_serve_requests_total\{.*completions.*status="499"\} 1$/m.test(metrics);
  };
  const end = Date.now() + 60_000;
  while (!(await givenUp()) && Date.now() < end) await sleep(50);
  expect(await givenUp()).toBe(true);
  const gone = new Promise((resolve) => socket.once('close', resolve));
  socket.resume();
  await gone;
  // Not all of it, which would be 38 MB.
  expect(socket.bytesRead).toBeLessThan(20_000_000);
});

test('an engine that fails in the middle of a stream is heard of', async () => {
  let steps = 0;
  const s = await serve(() => 'abcdef', {
    script: {
      pace: async () => {
        if (++steps === 3) throw new Error('the worker died');
      },
    },
  });
  const { text } = await post(s.url, chat, { ...ask, stream: true });
  expect(text).toMatch(/"error":\{"message":"the worker died","type":"server_error"/);
  expect(text.endsWith('data: [DONE]\n\n')).toBe(true);
  steps = 2;
  const whole = await post(s.url, chat, ask);
  expect([whole.status, JSON.parse(whole.text).error.message]).toEqual([500, 'the worker died']);
});

test('what runs when a server closes may end, but not for ever', async () => {
  const s = await served(() => 'ab', { script: { pace: () => sleep(60) } });
  const running = post(s.url, chat, ask);
  await until(() => s.engine.running === 1);
  await s.close();
  expect((await running).status).toBe(200);

  const slow = await served(() => 'abc', {
    script: { pace: () => new Promise(() => undefined) },
    server: { graceMs: 50 },
  });
  const lost = post(slow.url, chat, ask).catch(() => 'closed');
  await until(() => slow.engine.running === 1);
  const before = Date.now();
  await slow.close();
  expect(await lost).toBe('closed');
  expect(Date.now() - before).toBeLessThan(10_000);
});

test('a port that is taken is an error that says so', async () => {
  const s = await serve(() => '');
  const port = Number(new URL(s.url).port);
  const limits = { apiKeys: [], maxBodyBytes: 1, maxRequests: 1, stallMs: 1, graceMs: 1 };
  const at = (host: string): ModelServer => new ModelServer(s.model, { host, port, ...limits });
  await expect(at('127.0.0.1').listen()).rejects.toThrow(`[serve] port ${port} on 127.0.0.1 is in use`);
  // An address for documents, which no machine has.
  await expect(at('192.0.2.77').listen()).rejects.toThrow(
    `port ${port} on 192.0.2.77 cannot be listened on: `,
  );
});
