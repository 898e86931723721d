import { RemoteHandle } from '../../../ts/rollout/remote/remote_handle';

const handle = (): RemoteHandle =>
  new RemoteHandle({ promptIds: [1], sampling: { maxNewTokens: 1_000_000 } }, false, false);
const part = (tokens: number[]) => ({ tokens, logProbs: tokens.map((token) => -token) });
const weights = (version: number) => ({ begunWith: version, now: version });

test('a response of very many tokens may come in one piece', async () => {
  const one = handle();
  const tokens = Array.from({ length: 300_000 }, (_, i) => i);
  one.add(part(tokens), 0, weights(0));
  one.finish('length');
  expect((await one.result).tokens).toEqual(Int32Array.from(tokens));
});

test('what nobody has read yet is kept as tokens, not as a span for each piece', async () => {
  const one = handle();
  for (let token = 0; token < 100; token++) one.add(part([token]), 0, weights(token < 60 ? 1 : 2));
  const spans = one[Symbol.asyncIterator]();
  const first = (await spans.next()).value;
  expect([first.tokens.length, first.logProbs.at(-1), first.version]).toEqual([60, -59, 1]);
  one.add(part([100]), 0, weights(2));
  one.finish('stop');
  const second = (await spans.next()).value;
  expect([second.tokens.length, second.tokens[0], second.version]).toEqual([41, 60, 2]);
  expect((await spans.next()).done).toBe(true);
  expect((await one.result).versions).toEqual([
    { version: 1, start: 0, end: 60 },
    { version: 2, start: 60, end: 101 },
  ]);
});

const read = async (one: RemoteHandle): Promise<number[]> => {
  const tokens: number[] = [];
  for await (const span of one) tokens.push(...span.tokens);
  return tokens;
};

test('a response that begins again has nothing of what came before', async () => {
  const one = new RemoteHandle({ promptIds: [1, 2, 3], sampling: { maxNewTokens: 9 } }, true, false);
  const top = (token: number) => [{ token, logProb: -1 }];
  one.add({ ...part([5]), topLogProbs: [top(5)], cachedTokens: 2 }, 0, weights(1));
  expect(one.startOver()).toBe(true);
  one.add({ ...part([7, 8]), topLogProbs: [top(7), top(8)], cachedTokens: 1 }, 0, weights(2));
  one.finish('stop');
  expect(await one.result).toEqual({
    tokens: Int32Array.of(7, 8),
    logProbs: Float32Array.of(-7, -8),
    topLogProbs: [top(7), top(8)],
    versions: [{ version: 2, start: 0, end: 2 }],
    finishReason: 'stop',
    cachedTokens: 1,
  });
  // What has been handed out stays.
  expect(await read(one)).toEqual([7, 8]);
  expect(one.startOver()).toBe(false);
});

test('tokens of the response that a further server has in its cache are none of the prompt', async () => {
  const one = handle();
  one.add(part([5, 6]), 0, weights(0));
  one.add({ ...part([7]), cachedTokens: 3 }, 2, weights(0));
  one.finish('length');
  expect((await one.result).cachedTokens).toBe(1);
});

test('what a server says of weights holds for what it made itself, and from its beginning', async () => {
  const one = handle();
  one.add(part([5, 6]), 0, weights(1));
  // The second server begins behind two tokens; it says it once more with its last one.
  one.add({ ...part([7]), versions: [{ version: 1, start: 0, end: 1 }] }, 2, weights(1));
  one.add(
    {
      ...part([8, 9]),
      versions: [
        { version: 1, start: 0, end: 2 },
        { version: 2, start: 2, end: 3 },
      ],
    },
    2,
    weights(1),
  );
  one.finish('stop');
  expect((await one.result).versions).toEqual([
    { version: 1, start: 0, end: 4 },
    { version: 2, start: 4, end: 5 },
  ]);
});

test('one that is held hands everything out at its end', async () => {
  const one = new RemoteHandle({ promptIds: [1], sampling: { maxNewTokens: 9 } }, false, true);
  let count = 0;
  const all = (async () => {
    for await (const { tokens } of one) count += tokens.length;
  })();
  one.add(part([5, 6]), 0, weights(0));
  await new Promise((resolve) => setImmediate(resolve));
  expect([count, one.startOver()]).toEqual([0, true]);
  one.add(part([5, 6, 7]), 0, weights(0));
  one.finish('stop');
  await all;
  expect(count).toBe(3);
});

test('the call of an aborted response is broken off; who reads one that failed is told', async () => {
  const aborted = handle();
  aborted.add(part([5]), 0, weights(0));
  aborted.abort();
  expect(aborted.signal.aborted).toBe(true);
  expect(await aborted.result).toMatchObject({ finishReason: 'abort', tokens: Int32Array.of(5) });
  const failed = handle();
  const reading = read(failed);
  failed.add(part([5]), 0, weights(0));
  failed.fail(new Error('out of memory'));
  failed.finish('stop');
  failed.abort();
  expect(failed.signal.aborted).toBe(false);
  await expect(reading).rejects.toThrow('out of memory');
  await expect(failed.result).rejects.toThrow('out of memory');
});
