// Whether generation fits the model, whose workers may decode together: before any of them is started, and in the plan.
import { DECODING_RANKS, decodingRanks } from '../config/derived/rollout_place';
import type { ResolvedConfig } from '../config/schema/ppo_schema';
import { ConfigError } from '../errors';
import { latentCacheProblem } from '../model/latent_cache';
import { tensorProblem } from '../model/tensor_parts';
import type { NativeModelConfig } from '../native/bridge';

/** @throws ConfigError with the numbers */
export function checkDecoding(
  config: ResolvedConfig,
  model: Pick<NativeModelConfig, 'numHeads' | 'numKvHeads' | 'linear' | 'latent'>,
): void {
  const latents = latentCacheProblem(model);
  if (config.actor_rollout_ref.rollout.latent_cache && latents !== null) {
    const key = 'actor_rollout_ref.rollout.latent_cache';
    throw new ConfigError(`${key}: ${latents}: expected false`, key);
  }
  const ranks = decodingRanks(config);
  const problem = tensorProblem(ranks, model);
  if (problem !== null)
    throw new ConfigError(`${DECODING_RANKS}: ${problem} of the model, got ${ranks}`, DECODING_RANKS);
}
