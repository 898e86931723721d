// How our own engine drafts tokens.
import type { ResolvedConfig } from '../schema/ppo_schema';
import { usesServers } from './rollout_place';

export const MTP_ROLLOUT = 'actor_rollout_ref.model.mtp.enable_rollout';

export interface Drafts {
  method: 'ngram' | 'mtp';
  /** Per response and step at most. */
  tokens: number;
}

/** null: it computes one token per step, or servers generate. */
export function draftsOf(config: ResolvedConfig): Drafts | null {
  if (usesServers(config)) return null;
  const { model, rollout } = config.actor_rollout_ref;
  const { method, num_speculative_tokens: tokens } = rollout.speculative_config;
  if (method !== null) return { method, tokens };
  const { enable, enable_rollout, num_speculative_tokens } = model.mtp;
  return enable && enable_rollout ? { method: 'mtp', tokens: num_speculative_tokens } : null;
}

/** Whether it drafts by the model's own layers for further tokens, which its engine holds for that. */
export const draftsByModel = (config: ResolvedConfig): boolean => draftsOf(config)?.method === 'mtp';
