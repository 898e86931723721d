import pLimit from 'p-limit';
import { sleep } from '../../base/timers';
import { scoreEach, settle } from '../contract/outcome';
import type {
  Clock,
  RateLimits,
  RewardFunction,
  RewardManagerFactory,
  RewardOutcome,
  RewardSample,
} from '../contract/types';
import { TokenBucket } from './token_bucket';

const realTime: Clock = {
  now: () => performance.now(),
  sleep,
};

const DEFAULTS: RateLimits = {
  maxConcurrent: 1,
  maxRpm: null,
  maxTpm: null,
  estimatedTokensPerRequest: 2000,
};

/**
 * verl's rate_limited manager, for reward functions that ask a service: no more requests at once, per minute, or tokens
 * per minute than allowed, over all batches together. A request that fails or is late scores 0 unless `onError` says
 * otherwise. The time-out runs from when a request may go, not from when it begins to wait for that.
 */
export const rateLimitedManager: RewardManagerFactory = (fn, options) => {
  const { timeoutMs = 300_000, onError, kwargs = {} } = options;
  const limits = options.limits ?? DEFAULTS;
  const clock = limits.clock ?? realTime;
  const requests = limits.maxRpm === null ? null : new TokenBucket(limits.maxRpm, clock);
  const tokens = limits.maxTpm === null ? null : new TokenBucket(limits.maxTpm, clock);
  const atOnce = pLimit(limits.maxConcurrent);
  const request = async (sample: RewardSample): Promise<RewardOutcome> => {
    await requests?.acquire(1);
    await tokens?.acquire(limits.estimatedTokensPerRequest);
    return settle(() => (fn as RewardFunction)(sample, kwargs), timeoutMs);
  };
  return {
    score: (samples) =>
      scoreEach(samples, (sample) => atOnce(() => request(sample)), {
        concurrency: limits.maxConcurrent,
        onError: onError ?? 'zero',
      }),
  };
};
