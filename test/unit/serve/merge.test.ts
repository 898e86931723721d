import { setImmediate as turn } from 'node:timers/promises';
import { merge, withEnd } from '../../../ts/serve/call/merge';

async function* counting(count: number, from = 0): AsyncGenerator<number> {
  for (let i = 0; i < count; i++) yield from + i;
}

/** Gives nothing until it is let go. */
function waiting(): { source: AsyncGenerator<number>; go: () => void; ended: () => boolean } {
  let go = (): void => {};
  let ended = false;
  const held = new Promise<void>((resolve) => {
    go = resolve;
  });
  async function* wait(): AsyncGenerator<number> {
    try {
      await held;
      yield -1;
    } finally {
      ended = true;
    }
  }
  return { source: wait(), go, ended: () => ended };
}

test('items come in the order of each source, with the index of it, and each end once', async () => {
  const seen: [number, number | null][] = [];
  for await (const item of merge([counting(3), counting(0), counting(2, 10)].map(withEnd))) seen.push(item);
  const of = (index: number) => seen.filter(([source]) => source === index).map(([, item]) => item);
  expect([of(0), of(1), of(2)]).toEqual([[0, 1, 2, null], [null], [10, 11, null]]);
  expect(await merge([]).next()).toEqual({ done: true, value: undefined });
});

test('a source that is waited for holds up no other, and none of it is kept per item of the others', async () => {
  const slow = Array.from({ length: 500 }, waiting);
  const before = process.memoryUsage().heapUsed;
  let most = 0;
  let last = 0;
  for await (const [index, item] of merge([counting(10_000), ...slow.map(({ source }) => source)])) {
    last = item;
    if (index !== 0) continue;
    if (item % 1000 === 0) most = Math.max(most, process.memoryUsage().heapUsed - before);
    if (item === 9_999) for (const { go } of slow) go();
  }
  expect(last).toBe(-1);
  // A word for each of the five million pairs would be 40 MB, what a promise keeps of one who waits for it a multiple of that.
  expect(most).toBeLessThan(150e6);
});

test('an error of one ends all', async () => {
  const { source, go, ended } = waiting();
  async function* failing(): AsyncGenerator<number> {
    yield 1;
    throw new Error('broken');
  }
  const seen: number[] = [];
  const read = async (): Promise<void> => {
    for await (const [, item] of merge([source, failing()])) seen.push(item);
  };
  await expect(read()).rejects.toThrow('broken');
  expect(seen).toEqual([1]);
  go();
  await turn();
  expect(ended()).toBe(true);
});

test('a reader that stops ends all', async () => {
  const { source, go, ended } = waiting();
  for await (const [index] of merge([source, counting(5)])) {
    expect(index).toBe(1);
    break;
  }
  go();
  await turn();
  expect(ended()).toBe(true);
});
