import type { ResolvedConfig } from '../config/config';
import { readModelShape } from './model_shape';
import type { RoleSpec } from './plan';
import { checkedUlysses, dtypeOf, loadPerRank, placementOf, shardingOf, type Target } from './role_parts';

const SECTION = 'reward.reward_model';

/** The reward model on the workers of `target`, which are its own or those of the policy. */
export function rewardModelRole(
  { data, actor_rollout_ref, reward }: ResolvedConfig,
  target: Target,
): RoleSpec {
  const { reward_model: keys } = reward;
  const shape = readModelShape(keys.model_path as string, 'value', `${SECTION}.model_path`);
  const ulysses = checkedUlysses(
    keys.ulysses_sequence_parallel_size,
    shape,
    `${SECTION}.ulysses_sequence_parallel_size`,
  );
  const load = loadPerRank(data.gen_batch_size * actor_rollout_ref.rollout.n, ulysses, data, target);
  return {
    name: 'reward model',
    model: shape,
    ulysses,
    dtype: dtypeOf(keys.dtype, target),
    ...shardingOf(keys.model.fsdp_config),
    placement: placementOf(keys.model.fsdp_config),
    // One place more than the tokens: see RewardModel.score.
    capacity: keys.forward_max_token_len_per_gpu + 1,
    uncounted: 1,
    gradientCheckpointing: false,
    inference: { ...load, longest: load.longest + 1, response: load.response + 1 },
    update: null,
    rollouts: [],
    keys: {
      capacity: `${SECTION}.forward_max_token_len_per_gpu`,
      dtype: `${SECTION}.dtype`,
      gradientCheckpointing: null,
      sharding: `${SECTION}.model.fsdp_config`,
      placement: `${SECTION}.model.fsdp_config`,
    },
  };
}
