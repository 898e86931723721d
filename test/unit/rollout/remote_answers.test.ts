import { SglangProtocol } from '../../../ts/rollout/remote/sglang';
import { counting, generations, request, rolloutsOverServers, upwards } from '../../helpers/counting_servers';
import { type Respond, sendEvents } from '../../helpers/inference_server';
import { EXCHANGES } from '../../helpers/protocol_exchanges';

// Answers that are wrong without being errors.

const servers = rolloutsOverServers();
const { said } = servers;
const GENERATE = '/inference/v1/generate';

interface Entry {
  token_id: number;
  logprob: number;
}
const entry = (token_id: number, logprob = -1): Entry => ({ token_id, logprob });
const event = (tokens: number[], finish: string | null, entries = tokens.map((id) => entry(id))): object => ({
  choices: [
    {
      token_ids: tokens,
      finish_reason: finish,
      logprobs: { content: entries.map((one) => ({ ...one, top_logprobs: [] })) },
    },
  ],
});

const answering =
  (events: object[]): Respond =>
  (call, response) => {
    if (call.path !== GENERATE) return counting()(call, response);
    sendEvents(response, events);
    response.end('data: [DONE]\n\n');
    return undefined;
  };

const WRONG: [string, object[], RegExp][] = [
  [
    'a token outside the vocabulary',
    [event([11, 1000], 'stop')],
    /token 1000, outside .*\(0 to 999\).*another model/,
  ],
  ['a token below it', [event([-1], 'stop')], /token -1, outside/],
  [
    'more tokens than were asked for',
    [event([11, 12, 13, 14, 15, 16], 'length')],
    /6 tokens where 5 were left/,
  ],
  [
    'its last tokens twice',
    [event([11, 12], null), event([13, 14, 15], 'length'), event([13, 14, 15], 'length')],
    /3 tokens where 0 were left/,
  ],
  ['logits', [event([11], 'stop', [entry(11, 17.5)])], /log-prob 17.5, which is above 0.*processed_logprobs/],
  ['log-probs of other tokens', [event([11, 12], 'stop', [entry(11), entry(13)])], /log-probs of token 13/],
];

/** Tokens of an answer, and whose weights the server says to have made them. */
const spans = (tokens: number[], ...versions: [number, number][]): object => {
  const { choices } = event(tokens, 'stop') as { choices: [object] };
  const weight_versions = versions.map(([start, end]) => ({ version: '0', start, end }));
  return { choices: [{ ...choices[0], weight_versions }] };
};
WRONG.push(
  ['an end without a token', [event([], 'stop')], /the end of a response \(stop\) without a token/],
  [
    'weights of more tokens than it made',
    [event([11, 12], null), spans([13], [0, 2], [2, 9000])],
    /tokens 2 to 9000 as those of weights 0: expected them to go on from 2, among 3/,
  ],
  ['weights with a gap', [spans([11, 12, 13], [0, 1], [2, 3])], /tokens 2 to 3 .* go on from 1/],
  ['weights before the first token', [spans([11, 12], [-4, 2])], /tokens -4 to 2 .* go on from 0/],
  ['weights backwards', [spans([11, 12], [0, 2], [2, 1])], /tokens 2 to 1 .* go on from 2/],
);

test.each(WRONG)('a server that sends %s is an error that says so', async (_, events, message) => {
  const server = await servers.start(answering(events));
  const rollout = await servers.connect([server]);
  await expect(rollout.submit(request(10)).result).rejects.toThrow(message);
  expect(said).toEqual([]);
});

test('log-probs of a certain token may be rounded up', async () => {
  const server = await servers.start(answering([event([11], 'stop', [entry(11, 1e-6)])]));
  const rollout = await servers.connect([server]);
  expect([...(await rollout.submit(request(10)).result).tokens]).toEqual([11]);
});

test('counts behind the last token have no likeliest ones', async () => {
  const rollout = await servers.connect([await servers.fake()]);
  const { sampling, ...rest } = request(10);
  const { topLogProbs } = await rollout.submit({ ...rest, sampling: { ...sampling, topLogProbs: 2 } }).result;
  expect(topLogProbs).toHaveLength(5);
});

test('likeliest tokens of fewer positions than there are tokens are an error', async () => {
  const { answer } = EXCHANGES.sglang;
  const short = { ...answer.meta_info, output_top_logprobs: answer.meta_info.output_top_logprobs.slice(1) };
  const server = await servers.start(({ path }) =>
    path === '/generate' ? { ...answer, meta_info: short } : { context_length: 64 },
  );
  const rollout = await servers.connect([server], {}, new SglangProtocol([999]));
  const asked = { promptIds: [3, 4], sampling: { maxNewTokens: 4, topLogProbs: 2 } };
  await expect(rollout.submit(asked).result).rejects.toThrow(
    /3 tokens with the likeliest ones of 2 positions/,
  );
});

// Weights that the server was not given.

/** Answers as a server that counts; after `restart` as one that was started anew, with the weights of its command line. */
function restarting(): { respond: Respond; restart(): void } {
  let now = counting();
  return {
    respond: (call, response) => now(call, response),
    restart: () => {
      now = counting();
    },
  };
}

const directory = (version: number) => ({ kind: 'directory', path: `/w/${version}` }) as const;

test('a server that was started again while nothing was asked of it gets its weights before it answers', async () => {
  const { respond, restart } = restarting();
  const server = await servers.start(respond);
  const rollout = await servers.connect([server]);
  await rollout.updateWeights(directory(4), 4);
  expect((await rollout.submit(request(10)).result).versions).toEqual([{ version: 4, start: 0, end: 5 }]);
  restart();
  const { tokens, versions } = await rollout.submit(request(20)).result;
  expect([[...tokens], versions]).toEqual([upwards(20, 5), [{ version: 4, start: 0, end: 5 }]]);
  expect(server.paths().filter((path) => path === '/collective_rpc')).toHaveLength(2);
  expect(said[0]).toMatch(
    /was lost \(.*the weights "default" in place of "4", which it was given: it was started again/,
  );
  expect(said[1]).toMatch(/is back after/);
});

test('tokens of such weights that were handed out are an error, and the server gets its weights', async () => {
  const { respond, restart } = restarting();
  const server = await servers.start(respond);
  const rollout = await servers.connect([server]);
  await rollout.updateWeights(directory(4), 4);
  restart();
  const handle = rollout.submit(request(20));
  const read = async (): Promise<void> => {
    for await (const _ of handle);
  };
  await expect(read()).rejects.toThrow(/"default" in place of "4".*handed out/);
  expect((await rollout.submit(request(30)).result).versions).toEqual([{ version: 4, start: 0, end: 5 }]);
});

test('an address behind which several servers answer, of which one has the weights, is given up', async () => {
  const [first, second] = [counting(), counting()];
  // The second one gets every answer to a request, the first one all weights.
  const server = await servers.start((call, response) =>
    (call.path === GENERATE ? second : first)(call, response),
  );
  const rollout = await servers.connect([server]);
  await rollout.updateWeights(directory(4), 4);
  const { result } = rollout.submit(request(20));
  await expect(result).rejects.toThrow(
    /given up after 5 servers failed.*or another server answers at its address/,
  );
  expect(generations(server)).toHaveLength(5);
});

test('of SGLang too, which says with which weights a response ended', async () => {
  const { answer, info } = EXCHANGES.sglang;
  let version = 'default';
  const server = await servers.start(({ path, body }) => {
    if (path === '/update_weights_from_disk') version = body.weight_version;
    if (path === '/server_info') return info;
    return path === '/generate'
      ? { ...answer, meta_info: { ...answer.meta_info, weight_version: version } }
      : { success: true };
  });
  const rollout = await servers.connect([server], {}, new SglangProtocol([999]));
  await rollout.updateWeights(directory(4), 4);
  const ask = async () =>
    (await rollout.submit({ promptIds: [3], sampling: { maxNewTokens: 4 } }).result).versions;
  expect(await ask()).toEqual([{ version: 4, start: 0, end: 3 }]);
  for (const other of ['default', '3']) {
    version = other;
    expect(await ask()).toEqual([{ version: 4, start: 0, end: 3 }]);
    expect(said.at(-2)).toContain(`the weights "${other}" in place of "4"`);
  }
});

test('weights that a server was started with count as long as it was given none', async () => {
  const rollout = await servers.connect([await servers.fake()]);
  expect((await rollout.submit(request(10)).result).versions).toEqual([{ version: 0, start: 0, end: 5 }]);
  expect(said).toEqual([]);
});
