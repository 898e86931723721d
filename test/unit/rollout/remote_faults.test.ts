import { GivenServer } from '../../../ts/rollout/remote/inference_server';
import { VllmProtocol } from '../../../ts/rollout/remote/vllm';
import {
  counting,
  gate,
  generations,
  request,
  rolloutsOverServers,
  until,
  upwards,
} from '../../helpers/counting_servers';
import { type Respond, sendEvents } from '../../helpers/inference_server';

// Servers that do not die, and do not serve either.

const servers = rolloutsOverServers();
const { said } = servers;
const GENERATE = '/inference/v1/generate';

/** Answers as `first` says as long as it says something, then as servers do that count. */
function at(path: string, first: (call: number) => Respond | null): Respond {
  let calls = 0;
  const rest = counting();
  return (call, response) => {
    const respond = call.path === path ? first(++calls) : null;
    return (respond ?? rest)(call, response);
  };
}

test('a response that a server gives up by itself goes on elsewhere', async () => {
  // As vLLM ends what it has when it is stopped in order.
  const server = await servers.start(
    at(GENERATE, (call) =>
      call > 1
        ? null
        : (_, response) => {
            const content = [11, 12].map((id) => ({ token_id: id, logprob: -id / 64, top_logprobs: [] }));
            const choice = { token_ids: [11, 12], finish_reason: 'abort', logprobs: { content } };
            sendEvents(response, [{ choices: [choice] }]);
            response.end('data: [DONE]\n\n');
          },
    ),
  );
  const rollout = await servers.connect([server]);
  const { tokens, logProbs, finishReason } = await rollout.submit(request(10)).result;
  expect([[...tokens], finishReason]).toEqual([upwards(10, 5), 'length']);
  expect([...logProbs]).toEqual(upwards(10, 5).map((token) => -token / 64));
  expect(generations(server).map(({ body }) => body.token_ids)).toEqual([[10], [10, 11, 12]]);
  expect(said[0]).toMatch(/server 1 was lost \(.* gave a response up\)/);
});

test.each([
  ['all that were asked for', { maxNewTokens: 2, seed: 7n }, 'length'],
  ['one that ends it', { maxNewTokens: 9, seed: 7n, stopTokenIds: [12] }, 'stop'],
] as const)(
  'a response whose server is lost behind its last token, %s, is not gone on with',
  async (_, sampling, finishReason) => {
    const server = await servers.start(
      at(GENERATE, (call) =>
        call > 1
          ? null
          : (_, response) => {
              const content = [11, 12].map((id) => ({
                token_id: id,
                logprob: -id / 64,
                top_logprobs: [],
              }));
              const choice = { token_ids: [11, 12], finish_reason: null, logprobs: { content } };
              sendEvents(response, [{ choices: [choice] }]);
              setTimeout(() => response.destroy(), 20);
            },
      ),
    );
    const rollout = await servers.connect([server]);
    const result = await rollout.submit({ ...request(10), sampling: { stopTokenIds: [], ...sampling } })
      .result;
    expect([[...result.tokens], result.finishReason]).toEqual([upwards(10, 2), finishReason]);
    expect(generations(server)).toHaveLength(1);
  },
);

test('what was asked of a server before it came back says nothing of it afterwards', async () => {
  const { opened, open } = gate();
  const server = await servers.start(
    at(GENERATE, (call) =>
      call > 2
        ? null
        : ({ body }, response) => {
            const token = body.token_ids[0] + 1;
            const content = [{ token_id: token, logprob: -token / 64, top_logprobs: [] }];
            sendEvents(response, [
              { choices: [{ token_ids: [token], finish_reason: null, logprobs: { content } }] },
            ]);
            const first = new Promise((resolve) => setTimeout(resolve, 20));
            void (token === 11 ? first : opened).then(() => response.destroy());
          },
    ),
  );
  const rollout = await servers.connect([server]);
  const handles = [request(10), request(20)].map((one) => rollout.submit(one));
  const back = (): boolean => said.some((line) => /server 1 is back/.test(line));
  await until('word of its return', back, () => said);
  open();
  const results = await Promise.all(handles.map(({ result }) => result));
  expect(results.map(({ tokens }) => [...tokens])).toEqual([upwards(10, 5), upwards(20, 5)]);
  expect(said.filter((line) => /server 1 was lost/.test(line))).toHaveLength(1);
});

const answers =
  (status: number): Respond =>
  (_, response) => {
    response.statusCode = status;
    return { error: 'The request queue is full' };
  };

test.each([408, 429, 503])(
  'a server that answers %d is asked again, and has not been lost',
  async (status) => {
    const server = await servers.start(at(GENERATE, (call) => (call <= 3 ? answers(status) : null)));
    const rollout = await servers.connect([server]);
    await rollout.updateWeights({ kind: 'directory', path: '/w/1' }, 1);
    const handles = [request(10), request(20)].map((one) => rollout.submit(one));
    const results = await Promise.all(handles.map(({ result }) => result));
    expect(results.map(({ tokens }) => [...tokens])).toEqual([upwards(10, 5), upwards(20, 5)]);
    expect(server.paths().filter((path) => path === '/collective_rpc')).toHaveLength(1);
    expect(said).toEqual([expect.stringMatching(`server 1 is asked again later .* answered ${status} `)]);
  },
);

test('one that never takes a request is an error', async () => {
  const full = await servers.start(at(GENERATE, () => answers(503)));
  const rollout = await servers.connect([full], { recoveryMs: 100 });
  await expect(rollout.submit(request(10)).result).rejects.toThrow(
    /given up: servers have had too much to do for it for 0.1 s \(.* answered 503/,
  );
});

test('one that has too much to do and is not well is lost', async () => {
  let well = true;
  const rest = counting();
  const sick = await servers.start((call, response) => {
    well &&= call.path !== GENERATE;
    return (well ? rest : answers(503))(call, response);
  });
  const rollout = await servers.connect([sick]);
  const { result } = rollout.submit(request(10));
  await until(
    'word of the loss',
    () => said.some((line) => /server 1 was lost \(.*health answered 503/.test(line)),
    () => said,
  );
  well = true;
  await until(
    'word of its return',
    () => said.some((line) => /server 1 is back/.test(line)),
    () => said,
  );
  await rollout.close();
  expect((await result).finishReason).toBe('abort');
});

test('one that owes an answer for too long loses its requests to others, and is started again', async () => {
  const mute: Respond = () => undefined;
  let heard = true;
  class OfOurs extends GivenServer {
    override async close(): Promise<void> {
      heard = true;
      await super.close();
    }
  }
  const rest = counting();
  const silent = await servers.start((call, response) => {
    heard &&= call.path !== GENERATE;
    return (heard ? rest : mute)(call, response);
  });
  const protocol = new VllmProtocol();
  const rollout = await servers.connect([], {
    servers: [silent, await servers.fake()].map(({ url }) => new OfOurs(protocol, url, null)),
    recoveryMs: 400,
    maxConcurrency: 8,
  });
  const handles = Array.from({ length: 8 }, (_, i) => rollout.submit(request(20 * i)));
  const results = await Promise.all(handles.map(({ result }) => result));
  expect(results.map(({ tokens }) => [...tokens])).toEqual(results.map((_, i) => upwards(20 * i, 5)));
  expect(said.join('\n')).toMatch(/server 1 was lost \(.* has not answered for 0.4 s\)/);
  await until(
    'word of its return',
    () => said.some((line) => /server 1 is back/.test(line)),
    () => said,
  );
});

test('one that says nothing while it takes new weights is lost, and the others serve them', async () => {
  const rest = counting();
  let loading = false;
  const stuck = await servers.start((call, response) => {
    loading ||= call.path === '/collective_rpc';
    return loading ? undefined : rest(call, response);
  });
  const rollout = await servers.connect([stuck, await servers.fake()], { recoveryMs: 300 });
  await rollout.updateWeights({ kind: 'directory', path: '/w/1' }, 1);
  expect(said.join('\n')).toMatch(/server 1 was lost \(.* has not answered for 0.3 s\)/);
  expect((await rollout.submit(request(1)).result).versions).toEqual([{ version: 1, start: 0, end: 5 }]);
});

test('one that takes its time for new weights, and is well, is waited for', async () => {
  const { opened, open } = gate();
  const slow = await servers.start(
    at('/collective_rpc', () => async () => {
      await opened;
      return { results: [null] };
    }),
  );
  const rollout = await servers.connect([slow], { recoveryMs: 100 });
  const updated = rollout.updateWeights({ kind: 'directory', path: '/w/1' }, 1);
  const asked = (): number => slow.paths().filter((path) => path === '/health').length;
  const before = asked();
  await until('questions whether it is well', () => asked() >= before + 2, asked);
  open();
  await updated;
  expect(said).toEqual([]);
  expect((await rollout.submit(request(1)).result).versions).toEqual([{ version: 1, start: 0, end: 5 }]);
});

test('new weights for servers that are away are an error once the engine is closed', async () => {
  const server = await servers.start(at('/collective_rpc', () => (_, response) => void response.destroy()));
  const rollout = await servers.connect([server]);
  const updated = rollout.updateWeights({ kind: 'directory', path: '/w/1' }, 1);
  const refused = expect(updated).rejects.toMatchObject({ code: 'CLOSED' });
  await until(
    'word of the loss',
    () => said.length > 0,
    () => said,
  );
  await rollout.close();
  await refused;
});
