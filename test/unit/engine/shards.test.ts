import { Batch } from '../../../ts/batch/batch';
import { mergeRanks } from '../../../ts/engine/engine_metrics';
import { contiguousByRank, joinFloats, planUpdate, shardByRank } from '../../../ts/engine/shards';
import type { NativeMiniBatches } from '../../../ts/native/bridge';

const batch = Batch.fromSequences([[1], [2], [3], [4], [5], [6]], [[1], [1, 1], [1, 1, 1], [], [1], [1, 1]], {
  uid: [0, 1, 2, 3, 4, 5],
  responseMask: [1, 1, 0, 1, 1, 1, 1, 1, 1],
});

test('each mini-batch is cut over the ranks by tokens; counts stay those of the whole', () => {
  const shards = planUpdate('update', batch, 3, 2, 2);
  expect(shards.map((s) => s.batch.get('uid'))).toEqual([
    [0, 1, 3, 4],
    [2, 5],
  ]);
  expect(shards.map((s) => s.mini)).toEqual([
    { offsets: [0, 2, 4], globalTokens: [5, 3], globalSequences: [3, 3], epochs: 2 },
    { offsets: [0, 1, 2], globalTokens: [5, 3], globalSequences: [3, 3], epochs: 2 },
  ]);
  expect(shards.map((s) => s.tokens)).toEqual([
    [2, 1],
    [3, 2],
  ]);
});

test('sequences with and without a gradient are balanced apart: ranks run either kind together', () => {
  // By tokens alone rank 0 would get the long one, without gradient, and rank 1 all the others.
  const lengths = [1, 1, 1, 1, 1, 9, 1, 1];
  const uneven = Batch.fromSequences(
    lengths.map(() => [1]),
    lengths.map((length) => new Array(length).fill(1)),
    { uid: lengths.map((_, i) => i) },
  );
  const hasGradient = Uint8Array.of(1, 1, 1, 1, 1, 0, 0, 0);
  const shards = planUpdate('update', uneven, 8, 1, 2, hasGradient);
  const backward = shards.map((s) => (s.hasGradient as Uint8Array).reduce((sum, flag) => sum + flag, 0));
  const forward = shards.map((s) => s.batch.size - (backward[shards.indexOf(s)] as number));
  expect([...backward].sort()).toEqual([2, 3]);
  // The long one goes to the rank with less of the others.
  expect(forward).toEqual(backward.map((count) => (count === 3 ? 2 : 1)));
  for (const { batch: own } of shards) {
    const uid = own.get('uid') as number[];
    expect([...uid]).toEqual([...uid].sort((a, b) => a - b));
  }
  expect(shards.map((s) => [...(s.hasGradient as Uint8Array)])).toEqual(
    shards.map((s) => (s.batch.get('uid') as number[]).map((i) => hasGradient[i])),
  );
  // Fewer of one kind than ranks.
  const one = planUpdate('update', uneven, 8, 1, 4, Uint8Array.of(1, 0, 0, 0, 0, 0, 0, 0));
  expect(one.flatMap((s) => s.batch.get('uid') as number[]).sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
});

test('ranks without sequences take part with none', () => {
  const shards = planUpdate('update', batch, 2, 1, 3);
  expect(shards.map((s) => [...s.mini.offsets])).toEqual([
    [0, 1, 2, 3],
    [0, 1, 2, 3],
    [0, 0, 0, 0],
  ]);
  expect(shards[2]?.batch.size).toBe(0);
});

test('results of balanced shards go back to the order of the batch', () => {
  const shards = shardByRank(batch, 4);
  expect(shards.flatMap((s) => s.indices).sort()).toEqual([0, 1, 2, 3, 4, 5]);
  const own = shards.map(({ batch: part }) =>
    Float32Array.from({ length: part.numResponseTokens }, (_, t) => part.get('responseMask')[t] as number),
  );
  expect([...joinFloats(batch, shards, own)]).toEqual([1, 1, 0, 1, 1, 1, 1, 1, 1]);
  expect(Batch.concat(contiguousByRank(batch, 4))).toEqual(batch);
});

test('metrics of ranks: losses add up, means are weighted by loss tokens, the rest is the same', () => {
  const shards = [3, 1, 0].map((n) => ({
    batch,
    mini: {} as NativeMiniBatches,
    tokens: [n],
    hasGradient: null,
  }));
  const merged = mergeRanks(
    [
      [{ pg_loss: 0.5, entropy: 2, grad_norm: 7, lr: 0.1 }],
      [{ pg_loss: 0.25, entropy: 6, grad_norm: 7, lr: 0.1 }],
      [{ grad_norm: 7, lr: 0.1 }],
    ],
    shards,
  );
  expect(merged).toEqual([{ pg_loss: 0.75, entropy: 3, grad_norm: 7, lr: 0.1 }]);
});
