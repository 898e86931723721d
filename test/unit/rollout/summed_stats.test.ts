import type { NativeRolloutStats } from '../../../ts/native/bridge';
import { summedStats } from '../../../ts/rollout/native/summed_stats';

const COUNTS = {
  promptTokens: 3,
  cachedPromptTokens: 4,
  generatedTokens: 5,
  drafts: 6,
  draftedTokens: 7,
  acceptedTokens: 8,
  hostChoices: 9,
  preemptions: 10,
};
const rank = { ...COUNTS, running: 2, pages: 100, pagesHeld: 20 } as NativeRolloutStats;
const tenfold = Object.fromEntries(Object.entries(rank).map(([key, value]) => [key, 10 * Number(value)]));

test('sums over the ranks that have begun; pages are of 32 positions', () => {
  const all = [rank, null, tenfold as unknown as NativeRolloutStats];
  expect(summedStats(all, 30, 4)).toEqual({
    ...Object.fromEntries(Object.entries(COUNTS).map(([key, count]) => [key, 11 * count])),
    running: 22,
    waiting: 8,
    cachePositions: 32 * 1100,
    cachePositionsUsed: 32 * 220,
    version: 4,
  });
  expect(summedStats([null, null], 3, 0)).toMatchObject({ running: 0, waiting: 3, cachePositions: 0 });
});

test('requests that have been given up since a rank counted are none that wait', () => {
  expect(summedStats([rank], 1, 0)).toMatchObject({ running: 2, waiting: 0 });
});
