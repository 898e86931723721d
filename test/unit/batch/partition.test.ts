import { readFileSync } from 'node:fs';
import path from 'node:path';
import { balanceOrder, karmarkarKarp, sequenceWorkload } from '../../../ts/batch/partition';

const fixture = JSON.parse(
  readFileSync(path.join(__dirname, '../../fixtures/conformance/misc_head.json'), 'utf8'),
);

interface Case {
  seqlens: number[];
  k: number;
  equal_size: boolean;
  partitions: number[][];
}

describe('karmarkarKarp', () => {
  test.each(fixture.partitions as Case[])('$seqlens into $k, equal size $equal_size', (c) => {
    expect(karmarkarKarp(c.seqlens, c.k, c.equal_size)).toEqual(c.partitions);
  });

  test('impossible splits are errors', () => {
    expect(() => karmarkarKarp([1, 2, 3], 2, true)).toThrow(/3 % 2 = 1/);
    expect(() => karmarkarKarp([1], 2, false)).toThrow(/1 items into 2/);
    expect(() => karmarkarKarp([1], 0, false)).toThrow(/k: expected a positive integer but got 0/);
    expect(() => karmarkarKarp([1, Number.NaN], 2, false)).toThrow(/weight 1: expected a finite number >= 0/);
    expect(() => karmarkarKarp([-1, 1], 2, false)).toThrow(/weight 0/);
  });

  test('the same sets as the algorithm as it is written, with sets that are lists and empty sets kept', () => {
    let state = 1;
    const random = (below: number): number => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    for (let round = 0; round < 300; round++) {
      const k = 1 + random(9);
      const equalSize = random(2) === 0;
      const n = equalSize ? k * (1 + random(8)) : k + random(40);
      // Few different weights, zero among them: ties decide.
      const weights = Array.from({ length: n }, () => random([2, 5, 1000][round % 3] as number));
      expect(karmarkarKarp(weights, k, equalSize)).toEqual(plainPartition(weights, k, equalSize));
    }
  });

  test('thousands of sequences in parts of one size', () => {
    const lengths = Array.from({ length: 8192 }, (_, i) => (i * 7919) % 4096);
    const parts = karmarkarKarp(lengths.map(sequenceWorkload), 64, true);
    expect(parts.every((part) => part.length === 128)).toBe(true);
    expect(new Set(parts.flat()).size).toBe(8192);
  });
});

/** Largest differencing step by step: a list of states, sorted anew for every merge. */
function plainPartition(weights: number[], k: number, equalSize: boolean): number[][] {
  type Sets = number[][];
  const sum = (set: number[]): number => set.reduce((total, i) => total + (weights[i] as number), 0);
  const compare = (a: number[], b: number[]): number =>
    sum(a) - sum(b) || a.length - b.length || (a[0] ?? 0) - (b[0] ?? 0);
  const sorted = (sets: Sets): Sets => [...sets].sort((a, b) => compare(b, a));
  const spread = (sets: Sets): number => sum(sets[0] as number[]) - sum(sets[k - 1] as number[]);
  const order = weights
    .map((_, i) => i)
    .sort((a, b) => (weights[a] as number) - (weights[b] as number) || a - b);
  let states: Sets[] = [];
  for (let at = 0; at < order.length; at += equalSize ? k : 1) {
    const items = equalSize ? order.slice(at, at + k) : [order[at] as number];
    states.push(sorted(Array.from({ length: k }, (_, i) => items.slice(i, i + 1))));
  }
  while (states.length > 1) {
    states.sort((a, b) => spread(b) - spread(a) || compare(b[0] as number[], a[0] as number[]));
    const [a, b, ...rest] = states as [Sets, Sets, ...Sets[]];
    states = [sorted(a.map((set, i) => [...set, ...(b[k - 1 - i] as number[])])), ...rest];
  }
  return (states[0] as Sets).map((set) => set.sort((a, b) => a - b));
}

test('sequenceWorkload', () => {
  expect((fixture.workload.in as number[]).map(sequenceWorkload)).toEqual(fixture.workload.out);
});

test('balanceOrder is a permutation with light sequences at the ends of each part', () => {
  const order = balanceOrder([5, 1, 9, 3, 8, 2, 7, 4], 2);
  expect([...order].sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  const lengths = order.slice(0, 4).map((i) => [5, 1, 9, 3, 8, 2, 7, 4][i] as number);
  const sorted = [...lengths].sort((a, b) => a - b);
  expect(new Set([lengths[0], lengths[3]])).toEqual(new Set(sorted.slice(0, 2)));
});
