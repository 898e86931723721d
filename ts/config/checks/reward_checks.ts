import { reasonOf } from '../../base/text';
import { ConfigError } from '../../errors';
import { runCodeUrl } from '../../reward/contract/run_code_url';
import { longestText, sequenceBounds } from '../derived/sequence_bounds';
import { contextOf } from '../derived/ulysses';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { besideRewardModel } from './missing';

/** Values below `reward` that contradict each other or other sections. */
export function checkReward(config: ResolvedConfig): void {
  const { reward } = config;
  checkUrl(reward.sandbox_fusion.url);
  const { enable, model_path, input_tokenizer, truncation, max_length } = reward.reward_model;
  if (!enable) return;
  if (model_path === null) {
    throw new ConfigError(
      'reward.reward_model.model_path: expected a directory because reward.reward_model.enable is true, but it is not given',
      'reward.reward_model.model_path',
    );
  }
  const key = 'reward.custom_reward_function.path';
  const module = reward.custom_reward_function.path;
  if (module?.endsWith('.py')) throw new ConfigError(`${key}: ${besideRewardModel(module)}`, key);
  // With another tokenizer the lengths are not known beforehand.
  if (input_tokenizer !== null || truncation !== 'error') return;
  const { forward_max_token_len_per_gpu: perRank, ulysses_sequence_parallel_size: ranks } =
    reward.reward_model;
  const capacity = perRank * ranks * contextOf(reward.reward_model);
  const { sequence: longest } = sequenceBounds(config);
  for (const [key, limit] of [
    ['forward_max_token_len_per_gpu', capacity],
    ['max_length', max_length ?? longest],
  ] as const) {
    if (limit >= longest) continue;
    const path = `reward.reward_model.${key}`;
    throw new ConfigError(
      `${path}: ${limit} tokens cannot hold one sequence of ${longestText(config)} tokens; raise it, or set reward.reward_model.truncation`,
      path,
    );
  }
}

function checkUrl(url: string | null): void {
  if (url === null) return;
  try {
    runCodeUrl(url);
  } catch (error) {
    const path = 'reward.sandbox_fusion.url';
    throw new ConfigError(`${path}: ${reasonOf(error)}`, path);
  }
}
