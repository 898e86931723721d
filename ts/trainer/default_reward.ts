import type { ResolvedConfig } from '../config/config';
import { needsRewardModel } from '../config/derived/roles';
import { CODE_SOURCES, codeReward } from '../reward/code/code_reward';
import { PythonSandbox } from '../reward/code/python_sandbox';
import { type CodeRunner, once } from '../reward/code/runner';
import { SandboxFusion } from '../reward/code/sandbox_fusion';
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
 * The reward model's score; without one, the function of each row's data source, those of code with `reward.sandbox`, that of computer algebra
 * with processes of the run.
 */
export function defaultReward(config: ResolvedConfig): DefaultReward {
  if (needsRewardModel(config))
    return { reward: rewardModelScore, prepare: async () => undefined, close: () => undefined };
  const runner = codeRunner(config);
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

/** Sandbox Fusion where there is a server, else child processes here; made when it is first needed. */
export function codeRunner({ reward }: ResolvedConfig): () => Promise<CodeRunner> {
  const { sandbox, sandbox_fusion: fusion } = reward;
  const create = async (): Promise<CodeRunner> =>
    fusion.url === null
      ? await PythonSandbox.create({
          isolation: sandbox.isolation,
          python: sandbox.python,
          readable: sandbox.readable,
          timeout: sandbox.timeout,
          memoryLimitMb: sandbox.memory_limit_mb,
          maxProcesses: sandbox.max_processes,
          maxOutputMb: sandbox.max_output_mb,
          maxConcurrent: sandbox.max_concurrent,
        })
      : new SandboxFusion({
          url: fusion.url,
          maxConcurrent: fusion.max_concurrent,
          memoryLimitMb: fusion.memory_limit_mb,
          timeout: sandbox.timeout,
        });
  return once(create);
}
