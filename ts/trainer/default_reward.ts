import type { ResolvedConfig } from '../config/config';
import { needsRewardModel } from '../config/derived/roles';
import { CODE_SOURCES, codeReward } from '../reward/code/code_reward';
import type { CodeRunner } from '../reward/code/runner';
import type { RewardFunction } from '../reward/contract/types';
import { PrimeMath, primeMath } from '../reward/graders/prime_math';
import { rewardByDataSource, rewardFunction } from '../reward/reward';
import { rewardModelScore } from '../reward_model/reward_function';

/** What scores the responses of a run when no reward function is given. */
export interface DefaultReward {
  reward: RewardFunction;
  /**
   * Shows before training what would otherwise show at the first response: a data source that nothing scores, a sandbox that
   * does not work here.
   */
  prepare(dataSources: Iterable<string>): Promise<void>;
  /** Ends its processes. */
  close(): void;
}

/**
 * The reward model's score; without one, the function of each row's data source, those of code with the runner, that of computer algebra
 * with processes of the run.
 */
export function defaultReward(config: ResolvedConfig, runner: () => Promise<CodeRunner>): DefaultReward {
  if (needsRewardModel(config))
    return { reward: rewardModelScore, prepare: async () => undefined, close: () => undefined };
  const { sandbox, sandbox_fusion: fusion } = config.reward;
  const code = codeReward(runner, { continuous: sandbox.continuous, unfenced: fusion.url === null });
  const isCode = (source: string): boolean => CODE_SOURCES.includes(source);
  const math = new PrimeMath();
  const isMath = (source: string): boolean => rewardFunction(source) === primeMath;
  return {
    reward: (sample, kwargs) => {
      if (isCode(sample.dataSource)) return code(sample);
      return isMath(sample.dataSource) ? math.reward(sample) : rewardByDataSource(sample, kwargs);
    },
    prepare: async (dataSources) => {
      for (const source of dataSources) {
        rewardFunction(source);
        if (isCode(source)) await runner();
      }
    },
    close: () => math.close(),
  };
}
