import { joinFloats, planUpdate, shardByRank } from '../../../ts/actor/shards';
import { Batch } from '../../../ts/batch/batch';

const batch = Batch.fromSequences([[1], [2], [3], [4], [5], [6]], [[1], [1, 1], [1, 1, 1], [], [1], [1, 1]], {
  uid: [0, 1, 2, 3, 4, 5],
  responseMask: [1, 1, 0, 1, 1, 1, 1, 1, 1],
});

test('each mini-batch is cut over the ranks; counts stay those of the whole', () => {
  const shards = planUpdate('update', batch, 3, 2, 2);
  expect(shards.map((s) => s.batch.get('uid'))).toEqual([
    [0, 3],
    [1, 2, 4, 5],
  ]);
  expect(shards.map((s) => s.mini)).toEqual([
    { offsets: [0, 1, 2], globalTokens: [5, 3], globalSequences: [3, 3], epochs: 2 },
    { offsets: [0, 2, 4], globalTokens: [5, 3], globalSequences: [3, 3], epochs: 2 },
  ]);
});

test('contiguous shards join to the whole', () => {
  const parts = shardByRank(batch, 4);
  expect(parts.map((p) => p.size)).toEqual([1, 2, 1, 2]);
  expect(Batch.concat(parts)).toEqual(batch);
  expect([...joinFloats([Float32Array.of(1), Float32Array.of(2, 3)])]).toEqual([1, 2, 3]);
});
