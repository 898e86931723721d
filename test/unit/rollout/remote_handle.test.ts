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
