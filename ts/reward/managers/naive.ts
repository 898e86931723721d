import pLimit from 'p-limit';
import { scoreEach, settle } from '../contract/outcome';
import type { RewardFunction, RewardManagerFactory, RewardOutcome, RewardSample } from '../contract/types';

/**
 * verl's naive manager: every response is scored on its own, in this process. A synchronous function cannot be
 * interrupted: the time-out is for async ones.
 */
export const naiveManager: RewardManagerFactory = (fn, options) => {
  const { timeoutMs = 300_000, onError, concurrency = 64, kwargs = {} } = options;
  // Of all batches together: several may be scored at a time.
  const atOnce = pLimit(concurrency);
  const one = (sample: RewardSample): Promise<RewardOutcome> =>
    settle(() => (fn as RewardFunction)(sample, kwargs), timeoutMs);
  return {
    score: (samples) =>
      scoreEach(samples, (sample) => atOnce(() => one(sample)), {
        concurrency,
        onError: onError ?? 'fail',
      }),
  };
};
