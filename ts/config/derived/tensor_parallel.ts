// Tensor parallelism of the roles that learn: what must divide what.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { policyRanks } from './pools';
import { needsCritic } from './roles';
import { ulyssesOf } from './ulysses';

type Role = Pick<ResolvedConfig['critic'], 'strategy' | 'megatron'>;

/** @throws ConfigError for groups that do not divide the workers, or that nothing makes because of the strategy */
export function checkTensorParallel(config: ResolvedConfig): void {
  const { actor_rollout_ref: roles, critic } = config;
  const workers = policyRanks(config);
  const { actor } = roles;
  checkRole('actor_rollout_ref.actor', actor, ulyssesOf(actor, actor.fsdp_config), workers);
  if (needsCritic(config)) checkRole('critic', critic, ulyssesOf(critic, critic.model.fsdp_config), workers);
}

function checkRole(section: string, role: Role, ulysses: number, workers: number): void {
  const { tensor_model_parallel_size: tp } = role.megatron;
  const path = `${section}.megatron.tensor_model_parallel_size`;
  const refuse = (message: string): never => {
    throw new ConfigError(`${path}: ${message}`, path);
  };
  if (tp === 1) return;
  if (role.strategy !== 'megatron')
    refuse(`expected ${section}.strategy megatron beside ${tp}, got ${role.strategy}`);
  if (workers % tp !== 0)
    refuse(
      `expected a divisor of the number of workers (${workers}, trainer.nnodes x trainer.n_gpus_per_node), got ${tp}`,
    );
  if (ulysses > 1)
    refuse(
      `expected 1 beside ${section}.ulysses_sequence_parallel_size ${ulysses}, got ${tp}: both share the attention heads`,
    );
}
