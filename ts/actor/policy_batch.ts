import type { Batch } from '../batch/batch';
import type { SentBatch } from '../engine/batch_part';
import { ROUTED_EXPERTS } from '../engine/routed_experts';
import { tokenBatch } from '../engine/shards';
import { joinedTop } from '../engine/top_tokens';
import type { NativeGivenLoss, NativePolicyBatch, NativePolicyLossOptions } from '../native/bridge';

// A loss that was computed in TypeScript travels as columns, so that it is cut over ranks like all others.
const GIVEN = {
  values: 'givenLoss.values',
  byLogProb: 'givenLoss.byLogProb',
  byEntropy: 'givenLoss.byEntropy',
};

/** The batch with the columns of a given loss, [ΣR] each. */
export function withGivenLoss(batch: Batch, given: NativeGivenLoss): Batch {
  const columns: Record<string, Float32Array> = {
    [GIVEN.values]: given.values,
    [GIVEN.byLogProb]: given.byLogProb,
    ...(given.byEntropy === null ? {} : { [GIVEN.byEntropy]: given.byEntropy }),
  };
  const granularity = Object.fromEntries(Object.keys(columns).map((name) => [name, 'response' as const]));
  return batch.with(columns, { granularity });
}

// The rollout's log-probs are not among them: no loss of the core reads them.
const OPTIONAL = ['rolloutIsWeights', ...Object.values(GIVEN)];

/** Columns that a loss reads of a teacher. */
export function teacherColumns({ distillation }: NativePolicyLossOptions): readonly string[] {
  if (distillation === null) return [];
  return distillation.topK === 0 ? ['teacherLogProbs'] : ['teacherTopLogProbs', 'teacherTopIds'];
}

/** The batch with no more columns than a policy update reads. */
export const policyColumns = (b: Batch, loss: NativePolicyLossOptions, replayExperts: boolean): Batch =>
  b.select([
    'oldLogProbs',
    'advantages',
    ...(replayExperts ? [ROUTED_EXPERTS] : []),
    ...(loss.useKlLoss ? ['refLogProbs'] : []),
    ...teacherColumns(loss),
    ...OPTIONAL.filter((name) => b.has(name)),
  ]);

/** What the core takes of a batch in a policy update. `hasGradient` [B]: see gradientSequences. `experts`: see joinedExperts. */
export function policyBatch(
  b: SentBatch,
  loss: NativePolicyLossOptions,
  hasGradient: Uint8Array | null,
  experts: Uint8Array | null,
): NativePolicyBatch {
  const optional = (name: string): Float32Array | null =>
    b.has(name) ? (b.get(name) as Float32Array) : null;
  const [values, byLogProb] = [optional(GIVEN.values), optional(GIVEN.byLogProb)];
  return {
    tokens: tokenBatch(b, experts),
    responseMask: b.get('responseMask'),
    oldLogProbs: b.get('oldLogProbs'),
    advantages: b.get('advantages'),
    refLogProbs: loss.useKlLoss ? b.get('refLogProbs') : null,
    rolloutIsWeights: optional('rolloutIsWeights'),
    givenLoss:
      values === null || byLogProb === null
        ? null
        : { values, byLogProb, byEntropy: optional(GIVEN.byEntropy) },
    hasGradient,
    ...taught(b, loss),
  };
}

function taught(
  b: SentBatch,
  { distillation }: NativePolicyLossOptions,
): Pick<NativePolicyBatch, 'teacherLogProbs' | 'teacherIds'> {
  if (distillation === null) return { teacherLogProbs: null, teacherIds: null };
  const { topK } = distillation;
  if (topK === 0) return { teacherLogProbs: b.get('teacherLogProbs'), teacherIds: null };
  return {
    teacherLogProbs: joinedTop('updatePolicy', b, 'teacherTopLogProbs', topK),
    teacherIds: joinedTop('updatePolicy', b, 'teacherTopIds', topK),
  };
}
