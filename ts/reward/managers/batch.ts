import { TroupeError } from '../../errors';
import { checkedOutcome, concernsRun, gather, type Scored, settle, thrownText } from '../contract/outcome';
import type {
  BatchRewardFunction,
  RewardManagerFactory,
  RewardOutcome,
  RewardSample,
} from '../contract/types';

function failedBatch(size: number, what: string, cause?: unknown): TroupeError {
  return new TroupeError(
    'REWARD_FAILED',
    `[reward] ${what} for a batch of ${size} responses. Correct the reward function, or set reward.on_error=zero to ` +
      'score such a batch 0. With reward.reward_manager.name batch the function takes an array of samples and returns ' +
      'an array of as many scores',
    { cause },
  );
}

/** verl's batch manager: the function gets all responses of the batch at once. One that throws fails for all of them. */
export const batchManager: RewardManagerFactory = (fn, options) => {
  const { timeoutMs = 300_000, onError, kwargs = {} } = options;
  const outcomes = async (samples: readonly RewardSample[]): Promise<readonly RewardOutcome[]> => {
    let result: unknown;
    try {
      result = await settle<unknown>(() => (fn as BatchRewardFunction)(samples, kwargs), timeoutMs);
    } catch (error) {
      if (concernsRun(error)) throw error;
      throw failedBatch(samples.length, `the reward function failed (${thrownText(error)})`, error);
    }
    if (Array.isArray(result) && result.length === samples.length) return result;
    const got = Array.isArray(result) ? `an array of ${result.length}` : typeof result;
    throw failedBatch(
      samples.length,
      `expected an array of ${samples.length} scores from the reward function but got ${got}`,
    );
  };
  return {
    async score(samples) {
      if (samples.length === 0) return gather([], 0);
      let failures = 0;
      /** What `attempt` gives; with on_error zero, `instead` of a failure that concerns `count` samples. */
      const orZero = <T>(count: number, instead: T, error: unknown): T => {
        if (onError !== 'zero' || concernsRun(error)) throw error;
        failures += count;
        return instead;
      };
      const given = await outcomes(samples).catch((error) => orZero(samples.length, null, error));
      const zero: Scored = { score: 0, extra: {} };
      const scored = samples.map((sample, i) => {
        if (given === null) return zero;
        try {
          return checkedOutcome(given[i] as RewardOutcome, sample, i);
        } catch (error) {
          return orZero(1, zero, error);
        }
      });
      return gather(scored, failures);
    },
  };
};
