import type { RewardSample } from '../contract/types';

/** 1 when the response equals the ground truth (or one of several), white space at the ends aside; else 0. */
export const exactMatch = ({ response, groundTruth }: RewardSample): number => {
  const accepted = Array.isArray(groundTruth) ? groundTruth : [groundTruth];
  return accepted.some((truth) => String(truth).trim() === response.trim()) ? 1 : 0;
};
