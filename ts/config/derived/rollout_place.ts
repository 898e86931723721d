// Where responses come from, and how many workers make one together.
import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { hasRolloutPool, rolloutRanks, rolloutRanksKeys, rolloutRanksPerMachine } from './pools';

export const DECODING_RANKS = 'actor_rollout_ref.rollout.tensor_model_parallel_size';

/** Whether responses come from inference servers. */
export function usesServers({ actor_rollout_ref: { rollout } }: ResolvedConfig): boolean {
  return rollout.mode === 'server' || rollout.mode === 'managed';
}

/** Whether the workers that train generate. */
export function generatesInTraining(config: ResolvedConfig): boolean {
  return !usesServers(config) && !hasRolloutPool(config);
}

/**
 * Workers that generate together though each has whole matrices otherwise (native/engine/decoding_copy.h): 1 where servers generate, and where workers
 * do that train under the strategy megatron, whose generation is laid out as training.
 */
export function decodingRanks(config: ResolvedConfig): number {
  const { actor, rollout } = config.actor_rollout_ref;
  if (usesServers(config) || (actor.strategy === 'megatron' && !hasRolloutPool(config))) return 1;
  return rollout.tensor_model_parallel_size ?? 1;
}

/** @throws ConfigError for a number that does not divide the workers */
export function checkDecodingRanks(config: ResolvedConfig): void {
  const [ranks, workers] = [decodingRanks(config), rolloutRanks(config)];
  if (workers % ranks === 0) return;
  throw new ConfigError(
    `${DECODING_RANKS}: expected a divisor of the number of workers (${workers}, ${rolloutRanksKeys(config)}), got ${ranks}`,
    DECODING_RANKS,
  );
}

/** Why the key has no effect where it says something, or one that nobody wants; null: neither. */
export function decodingNote(config: ResolvedConfig): { path: string; reason: string } | null {
  const { actor, rollout } = config.actor_rollout_ref;
  const perMachine = rolloutRanksPerMachine(config);
  const ranks = decodingRanks(config);
  if (perMachine !== null && perMachine % ranks !== 0) {
    const reason = `of ${ranks} neighbouring workers some are on two machines (${perMachine} on each), and wait for the network in every layer`;
    return { path: DECODING_RANKS, reason };
  }
  const { tensor_model_parallel_size: given, mode } = rollout;
  if (given === null || mode === 'managed') return null;
  if (mode === 'server') return { path: DECODING_RANKS, reason: 'the servers were started by somebody else' };
  const { tensor_model_parallel_size: training } = actor.megatron;
  if (actor.strategy !== 'megatron' || hasRolloutPool(config) || given === training) return null;
  return {
    path: DECODING_RANKS,
    reason: `under strategy megatron generation is laid out as training (${training})`,
  };
}
