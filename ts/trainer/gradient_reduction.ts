import type { ResolvedConfig } from '../config/config';
import type { Device } from '../controller/default_device';
import type { Reduction } from '../native/bridge';
import { EngineMemory } from '../planner/engine_memory';
import { planPools } from '../planner/from_config';

/**
 * When actor and critic sum their gradients. auto: by the plan of the run, where trainer.memory_per_rank says what there is;
 * no weight is read for it.
 */
export async function gradientReductions(
  config: ResolvedConfig,
  device: Device,
): Promise<{ actor: Reduction; critic: Reduction }> {
  const actor = config.actor_rollout_ref.actor.fsdp_config.gradient_reduction;
  const critic = config.critic.model.fsdp_config.gradient_reduction;
  if (actor !== 'auto' && critic !== 'auto') return { actor, critic };
  const { memory_per_rank: memory } = config.trainer;
  const [{ roles }] = await EngineMemory.use((engines) => planPools(config, { device, memory }, engines));
  const of = (name: 'actor' | 'critic'): Reduction =>
    roles.find((role) => role.name === name)?.placement.reduction ?? 'micro_batch';
  return { actor: of('actor'), critic: of('critic') };
}
