import type { NativeRolloutStats } from '../../native/bridge';
import type { RolloutStats } from '../engine';

/** Positions of a page of keys and values. */
export const PAGE_POSITIONS = 32;

/** Of all ranks that serve requests of their own; null: one that has not begun. `requests`: that have not ended. */
export function summedStats(
  all: readonly (NativeRolloutStats | null)[],
  requests: number,
  version: number,
): RolloutStats {
  const sum = (pick: (stats: NativeRolloutStats) => number): number =>
    all.reduce((total, stats) => total + (stats === null ? 0 : pick(stats)), 0);
  const running = sum((stats) => stats.running);
  return {
    running,
    waiting: Math.max(0, requests - running),
    cachePositions: PAGE_POSITIONS * sum(({ pages }) => pages),
    cachePositionsUsed: PAGE_POSITIONS * sum(({ pagesHeld }) => pagesHeld),
    promptTokens: sum(({ promptTokens }) => promptTokens),
    cachedPromptTokens: sum(({ cachedPromptTokens }) => cachedPromptTokens),
    generatedTokens: sum(({ generatedTokens }) => generatedTokens),
    drafts: sum(({ drafts }) => drafts),
    draftedTokens: sum(({ draftedTokens }) => draftedTokens),
    acceptedTokens: sum(({ acceptedTokens }) => acceptedTokens),
    hostChoices: sum(({ hostChoices }) => hostChoices),
    preemptions: sum(({ preemptions }) => preemptions),
    version,
  };
}
