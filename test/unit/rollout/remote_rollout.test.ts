import { setTimeout as sleep } from 'node:timers/promises';
import type { RemoteHandle } from '../../../ts/rollout/remote/remote_handle';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import type { RolloutRequest } from '../../../ts/rollout/request';
import {
  follow,
  generations,
  never,
  request,
  rolloutsOverServers,
  until,
  upwards,
} from '../../helpers/counting_servers';
import { sendEvents } from '../../helpers/inference_server';

const servers = rolloutsOverServers();
const { said } = servers;
const connect = servers.connect.bind(servers);
const fake = servers.fake.bind(servers);

test('responses are streamed, and whole at the end', async () => {
  const rollout = await connect([await fake()]);
  const handle = rollout.submit(request(10));
  const streamed: number[] = [];
  for await (const span of handle) streamed.push(...span.tokens);
  expect(streamed).toEqual(upwards(10, 5));
  const result = await handle.result;
  expect([...result.tokens]).toEqual(upwards(10, 5));
  expect([...result.logProbs]).toEqual(upwards(10, 5).map((token) => -token / 64));
  expect([result.finishReason, result.versions]).toEqual(['length', [{ version: 0, start: 0, end: 5 }]]);
  expect(rollout.maxTokens).toBe(100);
  expect(() => rollout.submit(request(1, 200))).toThrow(/more than the 100/);
  expect(() => rollout.submit({ promptIds: [1], sampling: { maxNewTokens: 1, badWords: [[3]] } })).toThrow(
    /vllm cannot serve/,
  );
  const images = [{ height: 1, width: 1, pixels: new Uint8Array(3) }];
  expect(() => rollout.submit({ ...request(1), images })).toThrow(/vllm is sent token ids alone/);
});

test('what follows the last token is read: counts, and a connection that serves the next request', async () => {
  const server = await fake({ cached: 1 });
  const rollout = await connect([server]);
  const { connections } = server;
  for (const first of [10, 20, 30])
    expect((await rollout.submit(request(first)).result).cachedTokens).toBe(1);
  expect(await rollout.stats()).toMatchObject({ cachedPromptTokens: 3, promptTokens: 3 });
  expect(server.connections - connections).toBeLessThanOrEqual(1);
});

test('a response whose counts do not come is whole all the same', async () => {
  const server = await servers.start(({ path }, response) => {
    if (path !== '/inference/v1/generate') return { data: [] };
    const logprobs = { content: [{ token_id: 11, logprob: -1, top_logprobs: [] }] };
    sendEvents(response, [{ choices: [{ token_ids: [11], finish_reason: 'length', logprobs }] }]);
    setImmediate(() => response.destroy());
    return undefined;
  });
  const rollout = await connect([server]);
  expect(await rollout.submit(request(10, 1)).result).toMatchObject({
    finishReason: 'length',
    cachedTokens: 0,
  });
  expect(generations(server)).toHaveLength(1);
});

test('samples of a prompt go to one server, prompts to all, and no server gets more than it may', async () => {
  const servers = [await fake({ pace: 2 }), await fake({ pace: 2 }), await fake({ pace: 2 })];
  const rollout = await connect(servers, { maxConcurrency: 64 });
  // As many requests as one server may have more than another.
  const prompts = Array.from({ length: 5 }, (_, i) => 10 * i);
  await Promise.all(prompts.flatMap((first) => [0, 1, 2].map(() => rollout.submit(request(first)).result)));
  const of = servers.map((server) => new Set(generations(server).map(({ body }) => body.token_ids[0])));
  expect(of.filter(({ size }) => size > 0).length).toBeGreaterThan(1);
  expect(of.reduce((sum, { size }) => sum + size, 0)).toBe(5);

  let go = (): void => undefined;
  const standing = await fake({
    stand: {
      after: 1,
      until: new Promise((resolve) => {
        go = resolve;
      }),
    },
  });
  const narrow = await connect([standing], { maxConcurrency: 2 });
  const handles = prompts.map((first) => narrow.submit(request(first)));
  const counts = handles.map(follow);
  const streamed = (): number[] => counts.map((count) => count());
  await until('two requests', () => streamed().filter((count) => count === 1).length === 2, streamed);
  expect(await narrow.stats()).toMatchObject({ running: 2, waiting: 3 });
  go();
  await Promise.all(handles.map(({ result }) => result));
});

test('one server does not get everything for the sake of its cache', async () => {
  const servers = [await fake({ pace: 3 }), await fake({ pace: 3 })];
  const rollout = await connect(servers, { maxConcurrency: 100 });
  await Promise.all(Array.from({ length: 60 }, () => rollout.submit(request(7)).result));
  expect(servers.every((server) => generations(server).length > 15)).toBe(true);
});

test('a server dies in the middle of responses: others go on where it stopped', async () => {
  const [first, second] = [await fake({ stand: { after: 3, until: never } }), await fake()];
  const rollout = await connect([first, second]);
  const handles = Array.from({ length: 8 }, (_, i) => rollout.submit(request(20 * i, 12)));
  const counts = handles.map(follow);
  const streamed = (): number[] => counts.map((count) => count());
  await until('begun responses', () => streamed().every((count) => count === 3 || count === 12), streamed);
  expect(streamed()).toContain(3);
  await first.kill();
  const results = await Promise.all(handles.map(({ result }) => result));
  expect(results.map(({ tokens }) => [...tokens])).toEqual(results.map((_, i) => upwards(20 * i, 12)));
  expect(results.map(({ logProbs }) => [...logProbs])).toEqual(
    results.map((_, i) => upwards(20 * i, 12).map((t) => -t / 64)),
  );
  // Not from the beginning: the prompt and the three tokens.
  expect(new Set(generations(second).map(({ body }) => body.token_ids.length))).toEqual(new Set([1, 4]));
  expect(said.join('\n')).toMatch(/vllm server 1 was lost/);
});

const grammar = { kind: 'json-schema', schema: '{}' } as const;
const sampling = { maxNewTokens: 12, seed: 7n };

test.each<[string, Partial<RolloutRequest>, boolean]>([
  ['a grammar begins again', { grammar }, true],
  ['a presence penalty begins again', { sampling: { ...sampling, presencePenalty: 0.5 } }, true],
  ['a frequency penalty begins again', { sampling: { ...sampling, frequencyPenalty: 0.5 } }, true],
  ['a repetition penalty goes on', { sampling: { ...sampling, repetitionPenalty: 1.5 } }, false],
])('an interrupted response with %s', async (_, more, again) => {
  const server = await fake({ stand: { after: 3, until: never } });
  const rollout = await connect([server]);
  const handle = rollout.submit({ ...request(20, 12), ...more }) as RemoteHandle;
  const streamed: number[] = [];
  const read = (async () => {
    for await (const { tokens } of handle) streamed.push(...tokens);
  })();
  await until(
    'begun response',
    () => handle.tokens.length === 3,
    () => handle.tokens,
  );
  await server.kill();
  const next = await fake({}, Number(new URL(server.url).port));
  const { tokens, logProbs, versions } = await handle.result;
  await read;
  expect([...tokens]).toEqual(upwards(20, 12));
  expect(streamed).toEqual([...tokens]);
  expect(logProbs).toHaveLength(12);
  expect(versions).toEqual([{ version: 0, start: 0, end: 12 }]);
  expect(generations(next).map(({ body }) => [body.token_ids, body.sampling_params.seed])).toEqual([
    again ? [[20], 7] : [[20, 21, 22, 23], 10],
  ]);
});

test.each([false, true])(
  'a prompt that a server cannot take with the response so far; handed out: %s',
  async (read) => {
    class OfNoText extends VllmProtocol {
      override takes(): boolean {
        return false;
      }
    }
    const server = await fake({ stand: { after: 3, until: never } });
    const rollout = await connect([server], {}, new OfNoText());
    const handle = rollout.submit(request(20, 12)) as RemoteHandle;
    const count = read ? follow(handle) : () => handle.tokens.length;
    await until('begun response', () => count() === 3, count);
    await server.kill();
    const next = await fake({}, Number(new URL(server.url).port));
    if (read) await expect(handle.result).rejects.toThrow(/cannot go on with its 3 tokens, nor begin again/);
    else expect([...(await handle.result).tokens]).toEqual(upwards(20, 12));
    expect(generations(next).map(({ body }) => body.token_ids)).toEqual(read ? [] : [[20]]);
  },
);

test('what has come of a response that may begin again is there when it is aborted', async () => {
  const rollout = await connect([await fake({ pace: 1 })]);
  const handle = rollout.submit({ ...request(1, 80), grammar, deadlineMs: 60 });
  const { tokens, finishReason } = await handle.result;
  expect(finishReason).toBe('abort');
  expect([...tokens]).toEqual(upwards(1, tokens.length));
});

test('a response that begins again does so five times at most, however far it came', async () => {
  const server = await fake({ dieAfter: 2, pace: 2 });
  const rollout = await connect([server]);
  await expect(rollout.submit({ ...request(1, 12), grammar }).result).rejects.toThrow(
    /given up after 5 servers failed/,
  );
  expect(generations(server)).toHaveLength(5);
}, 30_000);

test('a server that comes back gets the weights of now before any request', async () => {
  const server = await fake({ stand: { after: 3, until: never } });
  const port = Number(new URL(server.url).port);
  const rollout = await connect([server]);
  await rollout.updateWeights({ kind: 'directory', path: '/w/1' }, 1);
  const handle = rollout.submit(request(10, 30));
  const count = follow(handle);
  await until('begun response', () => count() === 3, count);
  await server.kill();
  const again = await fake({}, port);
  const { tokens, versions } = await handle.result;
  expect([...tokens]).toEqual(upwards(10, 30));
  expect(versions).toEqual([{ version: 1, start: 0, end: 30 }]);
  const paths = again.paths();
  expect(paths.indexOf('/collective_rpc')).toBeGreaterThanOrEqual(0);
  expect(paths.indexOf('/collective_rpc')).toBeLessThan(paths.indexOf('/inference/v1/generate'));
  expect(said.at(-1)).toMatch(/vllm server 1 is back after/);
});

test('when no server is left, requests fail with the reasons', async () => {
  const server = await fake({ stand: { after: 3, until: never } });
  const rollout = await connect([server], { recoveryMs: 300 });
  const running = rollout.submit(request(10, 50));
  const count = follow(running);
  await until('begun response', () => count() === 3, count);
  await server.kill();
  await expect(running.result).rejects.toThrow(/no vllm server is left \(server 1: .*/);
  await expect(rollout.stats()).rejects.toMatchObject({ code: 'COMM' });
  await expect(rollout.submit(request(10)).result).rejects.toThrow(/no vllm server is left/);
});

test('a request that servers die of is given up', async () => {
  const rollout = await connect([await fake({ dieAfter: 0 })]);
  await expect(rollout.submit(request(1)).result).rejects.toThrow(/given up after 5 servers failed/);
}, 30_000);

test('new weights reach every server, and tokens say which made them', async () => {
  const servers = [await fake(), await fake()];
  const rollout = await connect(servers);
  await rollout.updateWeights({ kind: 'directory', path: '/w/version_4' }, 4);
  for (const server of servers)
    expect(server.calls.find(({ path }) => path === '/collective_rpc')?.body.kwargs).toEqual({
      weights_path: '/w/version_4',
    });
  expect(rollout.version).toBe(4);
  const { versions } = await rollout.submit(request(1)).result;
  expect(versions).toEqual([{ version: 4, start: 0, end: 5 }]);
  await expect(rollout.updateWeights({ kind: 'in-place' }, 5)).rejects.toThrow(/from a directory/);
});

test('servers that are started again for new weights: nobody waits for one that was given up', async () => {
  class StartedAgain extends VllmProtocol {
    override readonly reloads = false;
  }
  const protocol = new StartedAgain();
  const servers = [await fake(), await fake({ stand: { after: 1, until: never } })];
  const rollout = await connect(servers, { maxConcurrency: 1, recoveryMs: 300 }, protocol);
  const handles = [request(10), request(20)].map((one) => rollout.submit(one));
  const counts = handles.map(follow);
  const streamed = (): number[] => counts.map((count) => count());
  await until(
    'one that has ended and one that stands',
    () => [1, 5].every((n) => streamed().includes(n)),
    streamed,
  );
  await servers[1]?.kill();
  await Promise.all(handles.map(({ result }) => result));
  const givenUp = (): number => said.filter((line) => line.includes('is given up')).length;
  await until(
    'word of the loss',
    () => givenUp() === 1,
    () => said,
  );
  await rollout.updateWeights({ kind: 'directory', path: '/w/1' }, 1);
  expect((await rollout.submit(request(1)).result).versions).toEqual([{ version: 1, start: 0, end: 5 }]);
  expect(givenUp()).toBe(1);
});

test('aborts, deadlines and pauses', async () => {
  const server = await fake({ pace: 10 });
  const rollout = await connect([server], { maxConcurrency: 1 });
  const [running, waiting] = [rollout.submit(request(1, 80)), rollout.submit(request(2, 80))];
  const count = follow(running);
  await until('begun response', () => count() > 0, count);
  waiting.abort();
  running.abort();
  expect((await waiting.result).finishReason).toBe('abort');
  const result = await running.result;
  expect(result.finishReason).toBe('abort');
  expect(result.tokens.length).toBeGreaterThan(0);
  expect([...result.tokens]).toEqual(upwards(1, result.tokens.length));
  expect((await rollout.submit(request(1, 80, { deadlineMs: 50 })).result).finishReason).toBe('abort');
  // More than timers know: they would take it for none at all.
  expect((await rollout.submit(request(1, 5, { deadlineMs: 3e9 })).result).finishReason).toBe('length');
  await rollout.pause('wait');
  const held = rollout.submit(request(5, 1));
  await sleep(30);
  expect((await rollout.stats()).waiting).toBe(1);
  await rollout.resume();
  expect([...(await held.result).tokens]).toEqual([6]);
  await rollout.pause('keep');
  await rollout.resume();
  expect(server.paths().slice(-2)).toEqual(['/pause?mode=keep', '/resume']);
});

test('higher priorities go first', async () => {
  const server = await fake({ pace: 3 });
  const rollout = await connect([server], { maxConcurrency: 1 });
  const handles = [0, 0, 5].map((priority, i) => rollout.submit(request(100 * i, 2, { priority })));
  await Promise.all(handles.map(({ result }) => result));
  expect(generations(server).map(({ body }) => body.token_ids[0])).toEqual([200, 0, 100]);
});

test('a server that does not answer is an error at the start', async () => {
  const server = await fake();
  await server.kill();
  const said: string[] = [];
  await expect(connect([server], { recoveryMs: 300, say: (line) => said.push(line) })).rejects.toThrow(
    /vllm server 1 did not come up \(it has 0.3 s\): .*ECONNREFUSED/,
  );
  expect(said).toEqual([
    'waiting for vllm server 1, which does not answer yet: up to 0.3 s (actor_rollout_ref.rollout.server.recovery_timeout)',
  ]);
});
