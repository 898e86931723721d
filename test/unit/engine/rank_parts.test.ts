import { Batch } from '../../../ts/batch/batch';
import { sequenceWorkload } from '../../../ts/batch/partition';
import { firstWithPrompt } from '../../../ts/batch/prompts';
import { rankParts } from '../../../ts/engine/rank_parts';

let state = 1;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};

/** Answers with a long tail of lengths, `samples` to each prompt. */
function groups(prompts: number, samples: number, promptTokens: number, meanResponse: number): Batch {
  const prompt = (i: number): Int32Array =>
    Int32Array.from({ length: promptTokens }, (_, t) => (t === 0 ? i : 7));
  const response = (): Int32Array =>
    new Int32Array(Math.max(1, Math.round(-meanResponse * Math.log(1 - 0.98 * random()))));
  const rows = Array.from({ length: prompts * samples }, (_, j) => Math.floor(j / samples));
  return Batch.fromSequences(rows.map(prompt), rows.map(response));
}

function share(batch: Batch, ranks: number): { copies: number; busiest: number; sequences: number[] } {
  const first = firstWithPrompt(batch);
  const all = Array.from({ length: batch.size }, (_, i) => i);
  const parts = rankParts(batch, all, ranks, first);
  expect(parts).toHaveLength(ranks);
  const work = (indices: number[]): number => {
    const seen = new Set<number>();
    let sum = 0;
    for (const i of indices) {
      const prompt = first[i] as number;
      sum += sequenceWorkload(batch.sequenceLens[i] as number);
      if (seen.has(prompt)) sum -= sequenceWorkload(batch.promptLens[i] as number);
      seen.add(prompt);
    }
    return sum;
  };
  for (const { indices, work: told } of parts) {
    expect(told / work(indices) || 1).toBeCloseTo(1, 9);
    expect(indices).toEqual([...indices].sort((a, b) => a - b));
  }
  const sequences = parts.flatMap(({ indices }) => indices).sort((a, b) => a - b);
  expect(sequences).toEqual(all);
  return {
    copies: parts.reduce((sum, { indices }) => sum + new Set(indices.map((i) => first[i])).size, 0),
    busiest: Math.max(...parts.map(({ indices }) => work(indices))) / (work(all) / ranks),
    sequences: parts.map(({ indices }) => indices.length),
  };
}

test.each([2, 8, 32])('128 prompts with 8 responses each on %i ranks: prompts are computed once', (ranks) => {
  const { copies, busiest } = share(groups(128, 8, 100, 300), ranks);
  expect(copies / 128).toBeLessThan(1.1);
  expect(busiest).toBeLessThan(1.06);
});

test('one prompt for all ranks is split, evenly', () => {
  expect(share(groups(1, 4, 10, 0), 4).sequences).toEqual([1, 1, 1, 1]);
  const { copies, busiest } = share(groups(1, 256, 20, 50), 12);
  expect(copies).toBe(12);
  expect(busiest).toBeLessThan(1.06);
});

test('one prompt more than ranks: no rank does double work, and few prompts are split', () => {
  const { copies, busiest } = share(groups(33, 8, 100, 500), 32);
  expect(busiest).toBeLessThan(1.15);
  expect(copies).toBeLessThan(33 + 20);
});

test('a prompt is not split where to compute it once more costs what is gained', () => {
  const { copies } = share(groups(4, 4, 4000, 4), 8);
  expect(copies).toBe(4);
});

test('the square of the length counts: one long sequence outweighs short ones of more tokens', () => {
  const long = 60_000;
  const batch = Batch.fromSequences(
    [[1], ...Array.from({ length: 14 }, (_, i) => [2 + i])],
    [new Int32Array(long), ...Array.from({ length: 14 }, () => new Int32Array(8000))],
  );
  const parts = rankParts(batch, [...batch.get('promptLens').keys()], 2, firstWithPrompt(batch));
  const withLong = parts.find(({ indices }) => indices.includes(0));
  // By tokens alone it would share its rank with three or four of them (60 k + 28 k against 84 k).
  expect(withLong?.indices).toEqual([0]);
});

test('empty responses are no work, and sequences left out of the indices stay out', () => {
  const batch = Batch.fromSequences([[1], [2], [3], [4]], [[], [], [5], [6, 7]]);
  const parts = rankParts(batch, [0, 1, 2], 2, firstWithPrompt(batch));
  expect(parts.flatMap(({ indices }) => indices).sort()).toEqual([0, 1, 2]);
  expect(parts.reduce((sum, { work }) => sum + work, 0)).toBe(sequenceWorkload(2));
});

describe('firstWithPrompt', () => {
  test('by tokens: neighbours, repeats further on, and prompts that begin alike', () => {
    const prompts = [[1, 2], [1, 2], [1, 2, 3], [2, 1], [1, 2], [2, 1], [1]];
    const batch = Batch.fromSequences(prompts, prompts);
    expect([...firstWithPrompt(batch)]).toEqual([0, 0, 2, 3, 0, 3, 6]);
  });

  test('a thousand prompts that share all but one token, in no order', () => {
    const ids = Array.from({ length: 2000 }, (_, i) => (i * 7) % 1000);
    const batch = Batch.fromSequences(
      ids.map((id) => [5, id, 5]),
      ids.map(() => [1]),
    );
    expect([...firstWithPrompt(batch)]).toEqual(ids.map((id) => ids.indexOf(id)));
  });
});
