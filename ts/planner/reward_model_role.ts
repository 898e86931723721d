import type { ResolvedConfig } from '../config/config';
import { sequenceBounds } from '../config/derived/sequence_bounds';
import { rewardModelSettings } from '../roles/role_settings';
import type { RoleSpec } from './plan';
import { loadPerRank, roleSpec, sharingRanks, type Target } from './role_parts';

/** The reward model on the workers of `target`, which are its own or those of the policy. */
export function rewardModelRole(config: ResolvedConfig, target: Target): RoleSpec {
  const { data, actor_rollout_ref } = config;
  const settings = rewardModelSettings(config);
  const sequences = { prompts: data.gen_batch_size, samples: actor_rollout_ref.rollout.n };
  const load = loadPerRank(sequences, sharingRanks(settings), sequenceBounds(config), target);
  return {
    ...roleSpec(settings, target),
    // One place more than the tokens: see RewardModel.score.
    capacity: settings.tokensPerRank + 1,
    uncounted: 1,
    inference: { ...load, longest: load.longest + 1, response: load.response + 1 },
  };
}
