import { scoreEach, settle } from '../contract/outcome';
import type { RewardFunction, RewardManagerFactory } from '../contract/types';

/**
 * verl's naive manager: every response is scored on its own, in this process. A synchronous function cannot be
 * interrupted: the time-out is for async ones.
 */
export const naiveManager: RewardManagerFactory = (fn, options) => {
  const { timeoutMs = 300_000, onError, concurrency = 64, kwargs = {} } = options;
  return {
    score: (samples) =>
      scoreEach(samples, (sample) => settle(() => (fn as RewardFunction)(sample, kwargs), timeoutMs), {
        concurrency,
        onError: onError ?? 'fail',
      }),
  };
};
