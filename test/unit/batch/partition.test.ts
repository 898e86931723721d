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
    expect(() => karmarkarKarp([1], 0, false)).toThrow(/k >= 1/);
  });

  test('thousands of sequences in well under a second', () => {
    const lengths = Array.from({ length: 8192 }, (_, i) => (i * 7919) % 4096);
    const parts = karmarkarKarp(lengths.map(sequenceWorkload), 64, true);
    expect(parts.every((part) => part.length === 128)).toBe(true);
    expect(new Set(parts.flat()).size).toBe(8192);
  });
});

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
