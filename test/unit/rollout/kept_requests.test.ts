import { RequestChecks } from '../../../ts/rollout/check_request';
import { generations, rolloutsOverServers } from '../../helpers/counting_servers';
import { rolloutOverRanks } from '../../helpers/fake_ranks';

// A request is what it was when it was submitted, whatever its caller does to its objects for the next one.

const model = { vocabSize: 100, maxTokens: 50, eosTokenIds: [9] };

test('a sampling that is changed for the next request is looked at again', () => {
  const checks = new RequestChecks();
  const sampling = { maxNewTokens: 3, temperature: 0.5 };
  const first = checks.check({ promptIds: [1], sampling }, model);
  sampling.maxNewTokens = 4;
  sampling.temperature = 2;
  expect(checks.check({ promptIds: [1], sampling }, model)).toMatchObject({
    maxNewTokens: 4,
    temperature: 2,
  });
  expect(first).toMatchObject({ maxNewTokens: 3, temperature: 0.5 });
  sampling.temperature = -1;
  expect(() => checks.check({ promptIds: [1], sampling }, model)).toThrow(/temperature: expected/);
});

test('our own engine gets each request as it was submitted', async () => {
  const { ranks, rollout } = rolloutOverRanks(1);
  const sampling = { maxNewTokens: 1, seed: 0n };
  const request = { promptIds: [1], sampling, priority: 0, cacheSalt: 'a' };
  const handles = [1, 2, 3].map((i) => {
    request.promptIds[0] = i;
    request.priority = i;
    sampling.maxNewTokens = i;
    sampling.seed = BigInt(i);
    return rollout.submit(request);
  });
  const results = await Promise.all(handles.map(({ result }) => result));
  expect(results.map(({ tokens }) => tokens.length)).toEqual([1, 2, 3]);
  const sent = ranks[0]?.turns.flatMap(({ submit }) => submit) ?? [];
  expect(sent.map(({ prompt, priority, seedAndSalt }) => [prompt[0], priority, seedAndSalt[0]])).toEqual([
    [1, 1, 1n],
    [2, 2, 2n],
    [3, 3, 3n],
  ]);
});

describe('a server', () => {
  const servers = rolloutsOverServers();

  test('gets each request as it was submitted', async () => {
    const server = await servers.fake();
    const rollout = await servers.connect([server], { maxConcurrency: 1 });
    const sampling = { maxNewTokens: 1, seed: 0n };
    const request = { promptIds: [1], sampling, priority: 0, cacheSalt: '' };
    const handles = [1, 2, 3].map((i) => {
      request.promptIds[0] = 10 * i;
      request.cacheSalt = `salt ${i}`;
      sampling.maxNewTokens = i;
      sampling.seed = BigInt(i);
      return rollout.submit(request);
    });
    const results = await Promise.all(handles.map(({ result }) => result));
    expect(results.map(({ tokens }) => [...tokens])).toEqual([[11], [21, 22], [31, 32, 33]]);
    expect(generations(server).map(({ body }) => [body.cache_salt, body.sampling_params.seed])).toEqual([
      ['salt 1', 1],
      ['salt 2', 2],
      ['salt 3', 3],
    ]);
  });
});

test('a rank that a request never came to has no more to do for it', async () => {
  const { ranks, rollout } = rolloutOverRanks(2);
  const image: { height: number; width: number; pixels?: Uint8Array } = { height: 1, width: 1 };
  for (let i = 0; i < 40; i++) {
    image.pixels = new Uint8Array(3);
    const torn = rollout.submit({ promptIds: [1], sampling: { maxNewTokens: 1 }, images: [image as never] });
    delete image.pixels;
    await expect(torn.result).rejects.toThrow(/the request was changed after it was given/);
  }
  const others = [2, 3, 4, 5].map((first) =>
    rollout.submit({ promptIds: [first], sampling: { maxNewTokens: 1 } }),
  );
  await Promise.all(others.map(({ result }) => result));
  expect(ranks.map(({ made }) => made.length)).toEqual([2, 2]);
});
