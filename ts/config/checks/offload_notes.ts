import { teachersOf } from '../derived/teachers';
import type { ConfigNote } from '../reading/resolve';
import type { ResolvedConfig } from '../schema/ppo_schema';
import type { ResolvedSftConfig } from '../schema/sft_schema';

const KEYS = [
  'param_offload',
  'optimizer_offload',
  'grad_offload',
  'offload_policy',
  'enable_activation_offload',
];

type Section = Readonly<Record<string, unknown>>;

function sectionsOf(config: ResolvedConfig | ResolvedSftConfig): Readonly<Record<string, Section>> {
  if (!('actor_rollout_ref' in config))
    return { model: config.model, 'model.fsdp_config': config.model.fsdp_config };
  const { actor, ref, model } = config.actor_rollout_ref;
  return {
    'actor_rollout_ref.model': model,
    'actor_rollout_ref.actor.fsdp_config': actor.fsdp_config,
    'actor_rollout_ref.ref.fsdp_config': ref.fsdp_config,
    'critic.model': config.critic.model,
    'critic.model.fsdp_config': config.critic.model.fsdp_config,
    'reward.reward_model.model.fsdp_config': config.reward.reward_model.model.fsdp_config,
    ...Object.fromEntries(
      teachersOf(config).map(({ section, keys }) => [`${section}.fsdp_config`, keys.fsdp_config]),
    ),
    'actor_rollout_ref.actor.megatron': actor.megatron,
    'actor_rollout_ref.ref.megatron': ref.megatron,
    'critic.megatron': config.critic.megatron,
    'reward.reward_model.megatron': config.reward.reward_model.megatron,
  };
}

/** Offloading where there is no other memory: every role takes the same path, and saves nothing. */
export function offloadNotes(config: ResolvedConfig | ResolvedSftConfig): ConfigNote[] {
  const { device } = config.trainer;
  if (device === 'cuda') return [];
  const nothing = 'on cpu the host is the same memory: nothing is saved';
  const reason = device === 'cpu' ? nothing : `works on a GPU; ${nothing}`;
  return Object.entries(sectionsOf(config)).flatMap(([section, values]) =>
    KEYS.filter((key) => values[key] === true).map((key) => ({
      path: `${section}.${key}`,
      reason,
    })),
  );
}
