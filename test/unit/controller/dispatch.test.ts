import { oneToAll, rankZero, shardOf, splitCollect, splitLand } from '../../../ts/controller/dispatch';
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

const fourRanks = {
  worldSize: 4,
  callAll: async (_engine: string, _method: string, args: (rank: number) => unknown[]) =>
    [0, 1, 2, 3].map((rank) => [rank, ...args(rank)]),
} as unknown as WorkerGroup;

test('splitCollect gives neighbours the same shard and collects from the first of them', async () => {
  const shards: [number, number][] = [
    [5, 5],
    [6, 6],
  ];
  const pairs = { neighbours: 2, stages: 1 };
  expect(await splitCollect(fourRanks, 'actor', 'setSteps', shards, String, pairs)).toBe('0,5,5,2,6,6');
  const all = { neighbours: 4, stages: 1 };
  await expect(splitCollect(fourRanks, 'actor', 'setSteps', shards, String, all)).rejects.toThrow(
    'expected one shard per 4 ranks (1), got 2',
  );
});

test('splitCollect gives the stages of a pipeline the same shard and collects from the first of them', async () => {
  const shards: [number, number][] = [
    [5, 5],
    [6, 6],
  ];
  const stages = { neighbours: 1, stages: 2 };
  expect(await splitCollect(fourRanks, 'actor', 'setSteps', shards, String, stages)).toBe('0,5,5,1,6,6');
  expect([0, 1, 2, 3, 4, 5, 6, 7].map((rank) => shardOf(rank, 8, { neighbours: 2, stages: 2 }))).toEqual([
    0, 0, 1, 1, 0, 0, 1, 1,
  ]);
});

test('splitLand: of each shard the first rank says where its arrays land, before they come and with the result', async () => {
  const landed: [number, unknown][] = [];
  const group = {
    worldSize: 8,
    callAll: async (
      _engine: string,
      _method: string,
      args: (rank: number) => unknown[],
      land: (rank: number, value: unknown) => void,
    ) => {
      const ranks = [0, 1, 2, 3, 4, 5, 6, 7];
      for (const rank of ranks) land(rank, `from ${rank}`);
      return ranks.map((rank) => `result ${rank} of ${String(args(rank))}`);
    },
  } as unknown as WorkerGroup;
  const shards: [number, number][] = [
    [5, 5],
    [6, 6],
  ];
  await splitLand(group, 'actor', 'setSteps', shards, (shard, result) => landed.push([shard, result]), {
    neighbours: 2,
    stages: 2,
  });
  expect(landed).toEqual([
    [0, 'from 0'],
    [1, 'from 2'],
    [0, 'result 0 of 5,5'],
    [1, 'result 2 of 6,6'],
  ]);
});
