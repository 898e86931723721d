// Where responses come from, and how many workers make one together.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { policyRanks } from './pools';

export const DECODING_RANKS = 'actor_rollout_ref.rollout.tensor_model_parallel_size';

/** Whether responses come from inference servers. */
export function usesServers({ actor_rollout_ref: { rollout } }: ResolvedConfig): boolean {
  return rollout.mode === 'server' || rollout.mode === 'managed';
}

/**
 * Workers that generate together though each trains with whole matrices (native/engine/decoding_copy.h): 1 where servers generate, and under the
 * strategy megatron, where generation is laid out as training.
 */
export function decodingRanks(config: ResolvedConfig): number {
  const { actor, rollout } = config.actor_rollout_ref;
  if (usesServers(config) || actor.strategy === 'megatron') return 1;
  return rollout.tensor_model_parallel_size ?? 1;
}

/** @throws ConfigError for a number that does not divide the workers */
export function checkDecodingRanks(config: ResolvedConfig): void {
  const [ranks, workers] = [decodingRanks(config), policyRanks(config)];
  if (workers % ranks === 0) return;
  throw new ConfigError(
    `${DECODING_RANKS}: expected a divisor of the number of workers (${workers}, trainer.nnodes x trainer.n_gpus_per_node), got ${ranks}`,
    DECODING_RANKS,
  );
}

/** Why the key has no effect where it says something, or one that nobody wants; null: neither. */
export function decodingNote(config: ResolvedConfig): { path: string; reason: string } | null {
  const { actor, rollout } = config.actor_rollout_ref;
  const { nnodes, n_gpus_per_node: perNode } = config.trainer;
  const ranks = decodingRanks(config);
  if (nnodes > 1 && perNode % ranks !== 0) {
    const reason = `of ${ranks} neighbouring workers some are on two machines (${perNode} on each), and wait for the network in every layer`;
    return { path: DECODING_RANKS, reason };
  }
  const { tensor_model_parallel_size: given, mode } = rollout;
  if (given === null || mode === 'managed') return null;
  if (mode === 'server') return { path: DECODING_RANKS, reason: 'the servers were started by somebody else' };
  const { tensor_model_parallel_size: training } = actor.megatron;
  if (actor.strategy !== 'megatron' || given === training) return null;
  return {
    path: DECODING_RANKS,
    reason: `under strategy megatron generation is laid out as training (${training})`,
  };
}
