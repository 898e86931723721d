import { oneToAll, rankZero, splitCollect } from '../../../ts/controller/dispatch';
import type { WorkerGroup } from '../../../ts/controller/worker_group';

/** Answers each call with [rank, ...arguments]. */
const echo = {
  worldSize: 2,
  callAll: async (_engine: string, _method: string, args: unknown[][] | ((rank: number) => unknown[])) =>
    [0, 1].map((rank) => [rank, ...(typeof args === 'function' ? args(rank) : args[rank]!)]),
} as unknown as WorkerGroup;

test('oneToAll sends the same arguments to every rank', async () => {
  expect(await oneToAll(echo, 'actor', 'setSteps', [5, 5])).toEqual([
    [0, 5, 5],
    [1, 5, 5],
  ]);
});

test('rankZero returns the result of the first rank', async () => {
  expect(await rankZero(echo, 'actor', 'setSteps', [5, 5])).toEqual([0, 5, 5]);
});

test('splitCollect gives each rank its shard and collects by rank', async () => {
  expect(
    await splitCollect(
      echo,
      'actor',
      'setSteps',
      [
        [5, 5],
        [6, 6],
      ],
      String,
    ),
  ).toBe('0,5,5,1,6,6');
  await expect(splitCollect(echo, 'actor', 'setSteps', [[5, 5]], String)).rejects.toThrow(
    'expected one shard per rank (2), got 1',
  );
});
