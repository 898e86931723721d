import { Batch } from '../../../ts/batch/batch';
import { mergeRanks } from '../../../ts/engine/engine_metrics';
import { responsePlaces } from '../../../ts/engine/response_columns';
import { checkMiniBatches, planUpdate, shardByRank } from '../../../ts/engine/shards';
import type { NativeMiniBatches } from '../../../ts/native/bridge';
import { land, piecesOf } from '../../../ts/worker/message_arrays';

const batch = Batch.fromSequences([[1], [2], [3], [4], [5], [6]], [[1], [1, 1], [1, 1, 1], [], [1], [1, 1]], {
  uid: [0, 1, 2, 3, 4, 5],
  responseMask: [1, 1, 0, 1, 1, 1, 1, 1, 1],
});

test('what a rank is sent of an update are the columns of its sequences, from where they lie', () => {
  const more = batch.with({ advantages: Float32Array.from({ length: 9 }, (_, t) => t) });
  for (const { batch: own, indices } of planUpdate(more, [3, 3], 1, 2)) {
    const copy = more.take(indices);
    for (const name of ['tokens', 'responseMask', 'advantages']) {
      const pieces = piecesOf(own.get(name) as Int32Array) ?? [own.get(name) as Int32Array];
      expect(pieces.flatMap((piece) => [...(piece as Int32Array)])).toEqual([...copy.get(name)]);
      expect(new Set(pieces.map(({ buffer }) => buffer))).toEqual(
        new Set([(more.get(name) as Int32Array).buffer]),
      );
    }
    expect(own.seqOffsets).toEqual(copy.seqOffsets);
    expect(own.promptLens).toEqual(copy.promptLens);
  }
});

test('each mini-batch is cut over the ranks by work; counts stay those of the whole', () => {
  const shards = planUpdate(batch, [3, 3], 2, 2);
  // An empty response is no work: sequence 3 goes to the rank with less of it.
  expect(shards.map((s) => s.batch.get('uid'))).toEqual([
    [0, 1, 5],
    [2, 3, 4],
  ]);
  expect(shards.map((s) => s.mini)).toEqual([
    { offsets: [0, 2, 3], globalTokens: [5, 3], globalSequences: [3, 3], epochs: 2 },
    { offsets: [0, 1, 3], globalTokens: [5, 3], globalSequences: [3, 3], epochs: 2 },
  ]);
  expect(shards.map((s) => s.tokens)).toEqual([
    [2, 2],
    [3, 1],
  ]);
});

test('sequences with and without a gradient are balanced apart: ranks run either kind together', () => {
  // By tokens alone rank 0 would get the long one, without gradient, and rank 1 all the others.
  const lengths = [1, 1, 1, 1, 1, 9, 1, 1];
  const uneven = Batch.fromSequences(
    lengths.map((_, i) => [i]),
    lengths.map((length) => new Array(length).fill(1)),
    { uid: lengths.map((_, i) => i) },
  );
  const hasGradient = Uint8Array.of(1, 1, 1, 1, 1, 0, 0, 0);
  const shards = planUpdate(uneven, [8], 1, 2, hasGradient);
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
  const one = planUpdate(uneven, [8], 1, 4, Uint8Array.of(1, 0, 0, 0, 0, 0, 0, 0));
  expect(one.flatMap((s) => s.batch.get('uid') as number[]).sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
});

test('sequences without a gradient stay with their prompt where the core propagates them with it', () => {
  // A long prompt with short responses: to propagate the second costs less than to compute the prompt once more.
  const long = new Array(40).fill(3);
  const mixed = Batch.fromSequences(
    [long, long, [1], [2], [4], [5]],
    [
      [1, 1],
      [1, 1],
      [1, 1],
      [1, 1],
      [1, 1],
      [1, 1],
    ],
    { uid: [0, 1, 2, 3, 4, 5] },
  );
  const shards = planUpdate(mixed, [6], 1, 2, Uint8Array.of(1, 0, 1, 1, 0, 0));
  const together = shards.map((s) => (s.batch.get('uid') as number[]).filter((uid) => uid < 2));
  expect(together.map((uids) => uids.length).sort()).toEqual([0, 2]);
});

test.each([1, 2])('a hundred thousand sequences without a gradient on %i ranks', (ranks) => {
  const many = Batch.fromSequences(new Array(130_000).fill([1]), new Array(130_000).fill([1]));
  const shards = planUpdate(many, [130_000], 1, ranks, new Uint8Array(130_000).fill(1, 0, 1));
  expect(shards.reduce((sum, s) => sum + s.batch.size, 0)).toBe(130_000);
});

test('mini-batches of different sizes are cut in order, each with its own counts', () => {
  const shards = planUpdate(batch, checkMiniBatches('update', batch, [1, 3, 2]), 2, 2);
  for (const [rank, { mini, indices }] of shards.entries()) {
    expect(mini).toMatchObject({ globalSequences: [1, 3, 2], globalTokens: [1, 4, 3], epochs: 2 });
    const cut = [...mini.offsets].slice(1).map((end, m) => indices.slice(mini.offsets[m], end));
    cut.forEach((part, m) => {
      for (const i of part) expect([0, 1, 1, 1, 2, 2][i]).toBe(m);
    });
    expect(shards[rank]?.tokens).toHaveLength(3);
  }
  expect(shards.flatMap(({ indices }) => indices).sort()).toEqual([0, 1, 2, 3, 4, 5]);
});

test.each([
  [[3, 2], /add up to the 6 sequences of the batch but they make 5/],
  [[6, 0], /miniBatchSize\[1\]: expected an integer >= 1 but got 0/],
  [[2.5, 3.5], /miniBatchSize\[0\]: .* got 2.5/],
])('sizes %j of mini-batches are refused', (sizes, message) => {
  expect(() => checkMiniBatches('update', batch, sizes)).toThrow(message);
});

test('ranks without sequences take part with none', () => {
  const shards = planUpdate(batch, [2, 2, 2], 1, 3);
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
  const whole = new Float32Array(batch.numResponseTokens);
  for (const { indices } of shards) {
    const own = indices.flatMap((i) => [...(batch.row('responseMask', i) as Uint8Array)]);
    land(Float32Array.from(own), responsePlaces(batch, indices, whole));
  }
  expect([...whole]).toEqual([1, 1, 0, 1, 1, 1, 1, 1, 1]);
});

test('the tokens of a rank are sent from where they lie, without a copy', () => {
  const all = batch.get('tokens');
  for (const { tokens: own, indices } of shardByRank(batch, 2)) {
    const pieces = piecesOf(own.tokens) ?? [own.tokens];
    for (const piece of pieces) expect(piece.buffer).toBe(all.buffer);
    const part = batch.take(indices);
    expect(pieces.flatMap((piece) => [...(piece as Int32Array)])).toEqual([...part.get('tokens')]);
    expect(own.seqOffsets).toEqual(part.seqOffsets);
    expect(own.promptLens).toEqual(part.promptLens);
  }
});

/** Of ranks that have so many loss tokens. */
const shards = [3, 1, 0].map((n) => ({
  batch,
  indices: [],
  mini: {} as NativeMiniBatches,
  tokens: [n],
  hasGradient: null,
}));

test('metrics of ranks: of a distillation the extremes are those of all tokens', () => {
  const of = (loss: number, min: number, max: number, mass: number) => ({
    'distillation/loss': loss,
    'distillation/loss_min': min,
    'distillation/loss_max': max,
    'distillation/student_mass': mass,
  });
  const merged = mergeRanks([[of(0.5, -1, 2, 0.5)], [of(0.25, -3, 1, 0.9)], [{}]], shards);
  expect(merged).toEqual([of(0.75, -3, 2, (3 * 0.5 + 0.9) / 4)]);
});

test('metrics of ranks: losses add up, means are weighted by loss tokens, the rest is the same', () => {
  const merged = mergeRanks(
    [
      [{ pg_loss: 0.5, entropy: 2, grad_norm: 7, lr: 0.1, 'moe/entropy': 3 }],
      [{ pg_loss: 0.25, entropy: 6, grad_norm: 7, lr: 0.1, 'moe/entropy': 3 }],
      [{ grad_norm: 7, lr: 0.1, 'moe/entropy': 3 }],
    ],
    shards,
  );
  expect(merged).toEqual([{ pg_loss: 0.75, entropy: 3, grad_norm: 7, lr: 0.1, 'moe/entropy': 3 }]);
});
