import { ConfigError } from '../../errors';
import { scoreEach } from '../contract/outcome';
import type { RewardManagerFactory, RewardOutcome } from '../contract/types';
import { ScorerPool } from '../scorers/scorer_pool';

/**
 * verl's prime manager: responses are scored in parallel in processes of their own. A function that hangs, runs out of
 * memory or ends its process is killed at the time-out, whatever it does; its response scores 0 unless `onError` says
 * otherwise, and a new process takes the place.
 */
export const primeManager: RewardManagerFactory = (_, options) => {
  const { timeoutMs = 300_000, onError, kwargs = {}, module, libraries = [], numWorkers = 8 } = options;
  if (module === undefined) {
    throw new ConfigError(
      'reward.reward_manager.name: prime runs reward functions in processes of their own, which cannot be given a ' +
        'function of this one: put it into a module and set reward.custom_reward_function.path and name',
      'reward.reward_manager.name',
    );
  }
  const pool = new ScorerPool(numWorkers, { kind: 'function', module, libraries, kwargs });
  return {
    score: (samples) =>
      scoreEach(samples, (sample) => pool.run(sample, timeoutMs) as Promise<RewardOutcome>, {
        concurrency: numWorkers,
        onError: onError ?? 'zero',
      }),
    close: () => pool.close(),
  };
};
