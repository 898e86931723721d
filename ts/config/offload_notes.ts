import type { ResolvedConfig } from './ppo_schema';
import type { ConfigNote } from './resolve';

const KEYS = ['param_offload', 'optimizer_offload', 'grad_offload', 'offload_policy'];

/** Offloading where there is no other memory: every role takes the same path, and saves nothing. */
export function offloadNotes({
  trainer,
  actor_rollout_ref: { actor, ref },
  critic,
  reward,
}: ResolvedConfig): ConfigNote[] {
  if (trainer.device !== 'cpu') return [];
  const sections: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
    'actor_rollout_ref.actor.fsdp_config': actor.fsdp_config,
    'actor_rollout_ref.ref.fsdp_config': ref.fsdp_config,
    'critic.model.fsdp_config': critic.model.fsdp_config,
    'reward.reward_model.model.fsdp_config': reward.reward_model.model.fsdp_config,
  };
  return Object.entries(sections).flatMap(([section, values]) =>
    KEYS.filter((key) => values[key] === true).map((key) => ({
      path: `${section}.${key}`,
      reason: 'on cpu the host is the same memory: nothing is saved',
    })),
  );
}
