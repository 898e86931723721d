import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { policyRanks, rewardRanks, rewardRanksKeys } from './pools';
import { needsCritic, needsReference, needsRewardModel } from './roles';
import { teachersOf } from './teachers';

type UpdatedRole = Pick<ResolvedConfig['critic'], 'ulysses_sequence_parallel_size'>;
type LaidOutRole = UpdatedRole & Pick<ResolvedConfig['critic'], 'strategy' | 'megatron'>;
interface ContextRole {
  strategy: LaidOutRole['strategy'];
  megatron: Pick<LaidOutRole['megatron'], 'context_parallel_size'>;
}
type FsdpConfig = ResolvedConfig['actor_rollout_ref']['actor']['fsdp_config'];

/** Ranks per micro-batch by Ulysses: the role's key, when it is more than 1, before that of its fsdp_config, as in verl. */
export function ulyssesOf(role: UpdatedRole, fsdp: FsdpConfig): number {
  const { ulysses_sequence_parallel_size: own } = role;
  return own > 1 ? own : fsdp.ulysses_sequence_parallel_size;
}

/** Ranks of context parallelism: 1 but under the strategy megatron. */
export function contextOf({ strategy, megatron }: ContextRole): number {
  return strategy === 'megatron' ? megatron.context_parallel_size : 1;
}

/** Ranks that share the tokens of a micro-batch: by Ulysses or by context. */
export function sharingRanks(role: LaidOutRole, fsdp: FsdpConfig): number {
  return ulyssesOf(role, fsdp) * contextOf(role);
}

/** @throws ConfigError for a number of ranks per micro-batch that does not divide the workers, or two that differ */
export function checkUlysses(config: ResolvedConfig): void {
  const { actor_rollout_ref: roles, critic, reward } = config;
  const workers = policyRanks(config);
  const actor = 'actor_rollout_ref.actor';
  checkSame(actor, roles.actor, `${actor}.fsdp_config`, roles.actor.fsdp_config);
  checkUlyssesSize(actor, ulyssesOf(roles.actor, roles.actor.fsdp_config), workers);
  if (needsReference(config)) {
    checkUlyssesSize('actor_rollout_ref.ref', roles.ref.ulysses_sequence_parallel_size, workers);
  }
  if (needsCritic(config)) {
    checkSame('critic', critic, 'critic.model.fsdp_config', critic.model.fsdp_config);
    checkUlyssesSize('critic', ulyssesOf(critic, critic.model.fsdp_config), workers);
  }
  for (const { section, keys } of teachersOf(config))
    checkUlyssesSize(section, keys.ulysses_sequence_parallel_size, workers);
  if (needsRewardModel(config)) {
    const size = reward.reward_model.ulysses_sequence_parallel_size;
    checkUlyssesSize('reward.reward_model', size, rewardRanks(config), rewardRanksKeys(config));
  }
}

function checkSame(section: string, role: UpdatedRole, fsdpSection: string, fsdp: FsdpConfig): void {
  const [a, b] = [role.ulysses_sequence_parallel_size, fsdp.ulysses_sequence_parallel_size];
  if (a === 1 || b === 1 || a === b) return;
  const path = `${fsdpSection}.ulysses_sequence_parallel_size`;
  throw new ConfigError(
    `${path}: expected ${a}, as ${section}.ulysses_sequence_parallel_size says, got ${b}`,
    path,
  );
}

/** `section`: that holds the key; '' for the root. `keys`: whose product the workers are. */
export function checkUlyssesSize(
  section: string,
  size: number,
  workers: number,
  keys = 'trainer.nnodes x trainer.n_gpus_per_node',
): void {
  if (workers % size === 0) return;
  const path = `${section === '' ? '' : `${section}.`}ulysses_sequence_parallel_size`;
  throw new ConfigError(
    `${path}: expected a divisor of the number of workers (${workers}, ${keys}), got ${size}`,
    path,
  );
}
