import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { checkRequest } from '../../../ts/rollout/check_request';
import { ServerClient, ServerLost, ServerRefused } from '../../../ts/rollout/remote/server_client';
import type { ServerProtocol } from '../../../ts/rollout/remote/server_protocol';
import { SglangProtocol } from '../../../ts/rollout/remote/sglang';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import type { SamplingParams } from '../../../ts/rollout/request';
import { sendEvents } from '../../helpers/inference_server';
import { EXCHANGES, generate, LIMITS, model, start } from '../../helpers/protocol_exchanges';

const LAUNCH = {
  model: 'm',
  host: 'h',
  port: 1,
  dtype: 'float32',
  maxTokens: 64,
  maxConcurrency: 8,
  seed: 0,
  tensorParallel: 1,
  limits: LIMITS,
} as const;

describe('vLLM', () => {
  const { events, models } = EXCHANGES.vllm;

  test('token ids in and out, with log-probs and versions', async () => {
    const [server, client] = await start((_, response) => {
      sendEvents(response, events);
      response.end('data: [DONE]\n\n');
    });
    const parts = await generate(
      new VllmProtocol(),
      client,
      { seed: 2n ** 63n + 7n, topK: 5, stopTokenIds: [2, 9] },
      {
        grammar: { kind: 'json-schema', schema: '{}' },
      },
    );
    expect(parts.flatMap(({ tokens }) => tokens)).toEqual([12, 14, 2, 4]);
    expect(parts.flatMap(({ logProbs }) => logProbs)).toEqual([
      -2.1815428733825684, -2.502079486846924, -2.112013816833496, -1.925735354423523,
    ]);
    expect(parts.at(-2)).toMatchObject({ finish: 'length', versions: [{ version: 3, start: 0, end: 4 }] });
    expect(parts.at(-1)).toEqual({ tokens: [], logProbs: [], cachedTokens: 2 });
    expect(server.calls).toEqual([
      {
        method: 'POST',
        path: '/inference/v1/generate',
        body: expect.objectContaining({
          request_id: 'b',
          token_ids: [3, 4, 12, 5],
          stream: true,
          output_mode: 'tokens',
          priority: 0,
        }),
      },
    ]);
    expect(server.calls[0]?.body.sampling_params).toMatchObject({
      max_tokens: 4,
      temperature: 1,
      top_k: 5,
      logprobs: 0,
      ignore_eos: true,
      stop_token_ids: [2, 9],
      seed: 7,
      structured_outputs: { json: '{}' },
    });
  });

  test('of the most likely tokens one more is asked for than is given: the sampled one comes first there', async () => {
    const top = (...entries: [number, number][]) =>
      entries.map(([token_id, logprob], rank) => ({ token_id, logprob, rank }));
    const content = [
      { token_id: 9, logprob: -4, top_logprobs: top([9, -4], [3, -0.5], [5, -1.5]) },
      { token_id: 5, logprob: -1.5, top_logprobs: top([5, -1.5], [3, -0.5], [7, -2]) },
    ];
    const [server, client] = await start((_, response) => {
      const choice = { token_ids: [9, 5], finish_reason: 'length', logprobs: { content } };
      sendEvents(response, [{ choices: [choice] }]);
      response.end('data: [DONE]\n\n');
    });
    const [part] = await generate(new VllmProtocol(), client, { topLogProbs: 2 });
    const likely = [
      { token: 3, logProb: -0.5 },
      { token: 5, logProb: -1.5 },
    ];
    expect(part?.topLogProbs).toEqual([likely, likely]);
    expect(server.calls[0]?.body.sampling_params.logprobs).toBe(3);
  });

  test('what is to come first has a lower number there, and a managed server heeds it', async () => {
    const [server, client] = await start((_, response) => {
      sendEvents(response, events);
      response.end('data: [DONE]\n\n');
    });
    for (const priority of [3, -2, 0.4]) await generate(new VllmProtocol(), client, {}, { priority });
    expect(server.calls.map(({ body }) => body.priority)).toEqual([-3, 2, 0]);
    const { args } = new VllmProtocol().launch({ ...LAUNCH, releases: false });
    expect(args.join(' ')).toContain('--scheduling-policy priority');
    expect(args).toContain('--enable-prompt-tokens-details');
  });

  test('weights are reloaded from a directory', async () => {
    const [server, client] = await start(({ path }, response) => {
      const answer = EXCHANGES.vllm.controls[path];
      if (answer === null) response.end();
      return answer ?? undefined;
    });
    await new VllmProtocol().pause(client);
    await new VllmProtocol().load(client, '/weights/version_5', 5);
    await new VllmProtocol().resume(client);
    expect(server.calls.map(({ path, body }) => [path, body])).toEqual([
      ['/pause?mode=keep', null],
      ['/collective_rpc', { method: 'reload_weights', kwargs: { weights_path: '/weights/version_5' } }],
      ['/update_weight_version', { new_version: '5' }],
      ['/reset_prefix_cache?reset_running_requests=true', null],
      ['/resume', null],
    ]);
  });

  test('what it can hold, and what it cannot do', async () => {
    const [, client] = await start(() => models);
    expect(await new VllmProtocol().info(client)).toEqual({ maxTokens: 64 });
    const refusal = (sampling: Partial<SamplingParams>): string | null =>
      new VllmProtocol().refusal(
        checkRequest({ promptIds: [1], sampling: { maxNewTokens: 1, ...sampling } }, model),
      );
    expect(refusal({})).toBeNull();
    expect(refusal({ badWords: [[1]] })).toMatch(/bad words/);
    expect(refusal({ promptLogProbs: true })).toMatch(/temperature/);
  });

  test('errors in a stream: of the request, and of the server', async () => {
    const { errors } = EXCHANGES.vllm;
    let error: object = errors.bad_request;
    const [, client] = await start((_, response) => {
      sendEvents(response, [error]);
      response.end('data: [DONE]\n\n');
    });
    const ask = (): Promise<unknown> => generate(new VllmProtocol(), client, {});
    await expect(ask()).rejects.toBeInstanceOf(ServerRefused);
    error = errors.internal;
    await expect(ask()).rejects.toBeInstanceOf(ServerLost);
  });

  test('tokens without log-probs are refused', async () => {
    const [, client] = await start((_, response) => {
      sendEvents(response, [{ choices: [{ token_ids: [1, 2], finish_reason: 'length', logprobs: null }] }]);
      response.end();
    });
    await expect(generate(new VllmProtocol(), client, {})).rejects.toThrow('2 tokens with 0 log-probs');
  });
});

describe('SGLang', () => {
  const { answer, info } = EXCHANGES.sglang;

  test('token ids in and out, with log-probs and versions', async () => {
    const [server, client] = await start(() => answer);
    const [part] = await generate(new SglangProtocol([2]), client, { seed: 9n, topLogProbs: 2 });
    expect(part).toEqual({
      tokens: [12, 14, 2],
      logProbs: [-2.25, -2.5, -2.125],
      topLogProbs: [
        [
          { token: 12, logProb: -2.25 },
          { token: 3, logProb: -2.5 },
        ],
        [
          { token: 3, logProb: -1.5 },
          { token: 14, logProb: -2.5 },
        ],
        [
          { token: 2, logProb: -2.125 },
          { token: 1, logProb: -3.5 },
        ],
      ],
      finish: 'stop',
      cachedTokens: 2,
      endVersion: 3,
    });
    expect(server.calls[0]).toMatchObject({
      path: '/generate',
      body: {
        rid: 'b',
        input_ids: [3, 4, 12, 5],
        return_logprob: true,
        top_logprobs_num: 2,
        stream: false,
        sampling_params: {
          max_new_tokens: 4,
          top_k: -1,
          ignore_eos: false,
          stop_token_ids: [2],
          sampling_seed: 9,
        },
      },
    });
  });

  test('stop ids: with ignore_eos none ends a response, without it those of the model do as well', async () => {
    const [server, client] = await start(() => answer);
    const sglang = new SglangProtocol([2, 3]);
    const refusal = (stopTokenIds: number[]): string | null =>
      sglang.refusal(checkRequest({ promptIds: [1], sampling: { maxNewTokens: 1, stopTokenIds } }, model));
    for (const stopTokenIds of [[], [2, 3, 9]]) {
      expect(refusal(stopTokenIds)).toBeNull();
      await generate(sglang, client, { stopTokenIds });
    }
    expect(server.calls.map(({ body: { sampling_params: s } }) => [s.ignore_eos, s.stop_token_ids])).toEqual([
      [true, []],
      [false, [2, 3, 9]],
    ]);
    expect(refusal([2, 9])).toMatch(/the model's end tokens/);
  });

  test('weights of each token, from servers that know them', async () => {
    const { answer_with_spans } = EXCHANGES.sglang;
    const [, client] = await start(() => answer_with_spans);
    const [part] = await generate(new SglangProtocol([2]), client, {});
    expect(part).toMatchObject({
      endVersion: 4,
      versions: [
        { version: 3, start: 0, end: 2 },
        { version: 4, start: 2, end: 3 },
      ],
    });
  });

  test('weights come from a directory, in a pause', async () => {
    const [server, client] = await start(({ path }) => EXCHANGES.sglang.controls[path]);
    const sglang = new SglangProtocol([2]);
    await sglang.pause(client);
    await sglang.load(client, '/weights/version_5', 5);
    await sglang.resume(client);
    expect(server.calls.map(({ path, body }) => [path, body])).toEqual([
      ['/pause_generation', { mode: 'retract' }],
      [
        '/update_weights_from_disk',
        { model_path: '/weights/version_5', flush_cache: true, weight_version: '5' },
      ],
      ['/continue_generation', {}],
    ]);
  });

  test('weights that it does not take are an error', async () => {
    const [, failing] = await start((_, response) => {
      response.statusCode = 400;
      return EXCHANGES.sglang.update_failed;
    });
    await expect(new SglangProtocol([2]).load(failing, '/x', 1)).rejects.toThrow(
      'Failed to get weights iterator',
    );
  });

  test('what it can hold', async () => {
    const [, client] = await start(() => info);
    expect(await new SglangProtocol([2]).info(client)).toEqual({ maxTokens: 64 });
  });
});

test.each<[ServerProtocol, string]>([
  [new VllmProtocol(), '--enable-sleep-mode'],
  [new SglangProtocol([2]), '--enable-memory-saver'],
])('a managed server can give its memory back where it will be asked to', (protocol, option) => {
  for (const releases of [true, false])
    expect(protocol.launch({ ...LAUNCH, releases }).args.includes(option)).toBe(releases);
});

test.each<[ServerProtocol, string]>([
  [new VllmProtocol(), '--tensor-parallel-size 2'],
  [new SglangProtocol([2]), '--tp-size 2'],
])('a managed server has a model over so many GPUs as the configuration says', (protocol, option) => {
  for (const tensorParallel of [1, 2]) {
    const { args } = protocol.launch({ ...LAUNCH, tensorParallel, releases: false });
    expect(args.join(' ').includes(option)).toBe(tensorParallel === 2);
  }
});

test('what passes and what does not', async () => {
  const statuses = [500, 429, 400, 404];
  const [, client] = await start((_, response) => {
    response.statusCode = statuses.shift() as number;
    return { message: 'x' };
  });
  const ask = (): Promise<unknown> => client.json('POST', '/a', {});
  await expect(ask()).rejects.toBeInstanceOf(ServerLost);
  await expect(ask()).rejects.toBeInstanceOf(ServerLost);
  await expect(ask()).rejects.toBeInstanceOf(ServerRefused);
  await expect(ask()).rejects.toThrow(/answered 404/);
  await expect(new ServerClient('http://127.0.0.1:1').json('GET', '/', null)).rejects.toBeInstanceOf(
    ServerLost,
  );
  expect(() => new ServerClient('ftp://x')).toThrow(/expected a URL/);
});

test('an address may have a path and a password, which no error repeats', async () => {
  const seen: (string | undefined)[] = [];
  const server = createServer(({ url, headers }, response) => {
    seen.push(url, headers.authorization);
    response.writeHead(308, { location: 'https://elsewhere/a' }).end('moved');
  }).listen(0, '::1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const client = new ServerClient(`http://me:secret@[::1]:${port}/engines/1/`);
  try {
    await expect(client.json('GET', '/health', null)).rejects.toThrow(
      new ServerRefused(
        `http://[::1]:${port}/engines/1/health answered 308 and sends on to https://elsewhere/a: name that address. moved`,
      ),
    );
    expect(seen).toEqual(['/engines/1/health', `Basic ${Buffer.from('me:secret').toString('base64')}`]);
  } finally {
    client.close();
    server.close();
  }
});

describe('an answer that is none of such a server names its URL, status and beginning', () => {
  const vllm = new VllmProtocol();
  const sglang = new SglangProtocol([2]);
  const load = (client: ServerClient): Promise<unknown> => sglang.load(client, '/weights', 5);
  const page = '<html><body>It works!</body></html>';

  test.each<[string, string, (client: ServerClient) => Promise<unknown>, object, RegExp]>([
    [
      'a page of something else',
      page,
      (client) => vllm.info(client),
      ServerLost,
      /^http:\/\/127\.0\.0\.1:\d+\/v1\/models answered 200 with what is no JSON: <html><body>It works!/,
    ],
    [
      'other JSON',
      '{"object":"list"}',
      (client) => vllm.info(client),
      ServerRefused,
      /\/v1\/models answered 200 with JSON of another shape \(data: .*expected array.*\): \{"object":"list"\}/,
    ],
    [
      'nothing',
      '',
      (client) => generate(sglang, client, {}),
      ServerLost,
      /\/generate answered 200 .*: nothing/,
    ],
    ['null', 'null', load, ServerRefused, /\/update_weights_from_disk answered 200 .*another shape.*: null/],
    [
      'a page instead of a stream',
      page,
      (client) => generate(vllm, client, {}),
      ServerLost,
      /\/inference\/v1\/generate answered 200 without an event: <html>/,
    ],
    [
      'another event',
      'data: {"choices":[{"text":"hi"}]}\n\n',
      (client) => generate(vllm, client, {}),
      ServerRefused,
      /\/inference\/v1\/generate sent an event of another shape \(choices\.0\.token_ids: .*\): \{"choices"/,
    ],
  ])('%s', async (_, body, ask, kind, message) => {
    const [, client] = await start((_call, response) => void response.end(body));
    const error = await ask(client).catch((cause: unknown) => cause as Error);
    expect(error).toBeInstanceOf(kind);
    expect((error as Error).message).toMatch(message);
  });
});
