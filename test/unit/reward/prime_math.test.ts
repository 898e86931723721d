import { scorePrimeMath } from '../../../ts/reward/graders/prime_math';
import { ScorerPool } from '../../../ts/reward/scorers/scorer_pool';

// What the grader starts its processes with; what they do is in test/dist/scorer_pool.test.ts.

jest.mock('../../../ts/reward/scorers/scorer_pool', () => ({
  ScorerPool: jest.fn(() => ({ run: async () => true })),
}));
jest.mock('node:os', () => ({ ...jest.requireActual('node:os'), availableParallelism: () => 7 }));

test('as many processes as cores, within a memory, which end when there is nothing to compare', async () => {
  expect(await scorePrimeMath('\\boxed{x+1}', '1+x')).toBe(1);
  expect(await scorePrimeMath('\\boxed{y}', '2y/2')).toBe(1);
  expect(ScorerPool).toHaveBeenCalledTimes(1);
  const [size, setup, memoryMb, idleMs] = jest.mocked(ScorerPool).mock.calls[0] as unknown[];
  expect(size).toBe(7);
  expect(setup).toEqual({ kind: 'symbolic' });
  expect(memoryMb).toBeGreaterThan(0);
  expect(idleMs).toBeGreaterThan(0);
});
