import type { RewardSample } from '../../../ts/reward/contract/types';

/** A response to "1+1=", with one token unless said otherwise. */
export const sample = (response: string, more: Partial<RewardSample> = {}): RewardSample => ({
  prompt: '1+1=',
  response,
  responseTokens: Int32Array.of(1),
  groundTruth: '2',
  dataSource: 'sums',
  extraInfo: {},
  ...more,
});
