import { PROPORTIONAL_LOSSES } from '../algorithms/policy_losses/registry';
import type { Batch } from '../batch/batch';
import type { NativePolicyLossOptions } from '../native/bridge';

/**
 * [B] 1 where the policy loss of a sequence may have a gradient, 0 where it has none; null: all may. A sequence has none without
 * policy tokens, and where its advantages are all zero (in GRPO: every response to a prompt got the same reward) and no other
 * term of the loss, KL, entropy or a teacher, moves it. Losses of routers are of every token.
 */
export function gradientSequences(batch: Batch, loss: NativePolicyLossOptions): Uint8Array | null {
  if (loss.routerAuxLossCoef !== 0 || loss.routerZLossCoef !== 0) return null;
  const { responseOffsets } = batch;
  const [mask, advantages] = [batch.get('responseMask'), batch.get('advantages')];
  const otherTerms =
    loss.entropyCoeff !== 0 || (loss.useKlLoss && loss.klLossCoef !== 0) || loss.distillation !== null;
  const byAdvantage = PROPORTIONAL_LOSSES.includes(loss.mode) && !otherTerms;
  const flags = new Uint8Array(batch.size);
  for (let i = 0; i < batch.size; i++) {
    const end = responseOffsets[i + 1] as number;
    for (let t = responseOffsets[i] as number; t < end && flags[i] === 0; t++)
      if (mask[t] !== 0 && !(byAdvantage && advantages[t] === 0)) flags[i] = 1;
  }
  return flags.includes(0) ? flags : null;
}
