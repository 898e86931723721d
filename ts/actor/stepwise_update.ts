// Updates whose loss TypeScript prepares: per mini-batch the current log-probs, then the loss, then one step of the core.
import {
  BYPASS_MODE,
  type PolicyLossFunction,
  registeredPolicyLoss,
} from '../algorithms/policy_losses/registry';
import type { RolloutCorrectionOptions } from '../algorithms/rollout_correction/options';
import type { Batch } from '../batch/batch';
import { offsetsOf } from '../batch/layout';
import { oneToAll, rankZero } from '../controller/dispatch';
import { mergeRanks } from '../engine/engine_metrics';
import type { RoleEngine } from '../engine/role_engine';
import { joinedExperts } from '../engine/routed_experts';
import { planUpdate } from '../engine/shards';
import type { NativeMetrics, NativePolicyBatch, NativePolicyLossOptions } from '../native/bridge';
import { bypassLoss, givenLoss } from './given_loss';
import { policyBatch, policyColumns, withGivenLoss } from './policy_batch';

/** The current policy's log-probs [ΣR] of a batch, and entropies when they were asked for. */
type Evaluate = (
  batch: Batch,
  entropy: boolean,
) => Promise<{ logProbs: Float32Array; entropy: Float32Array | null }>;

interface Prepared {
  /** With the columns that the core's loss reads. */
  batch: Batch;
  loss: NativePolicyLossOptions;
  metrics: NativeMetrics;
}

/** How the loss of a mini-batch is prepared from the current log-probs. */
export interface Preparation {
  entropy: boolean;
  /** Columns that the batch must have, besides those of every update. */
  columns: readonly string[];
  prepare(
    mini: Batch,
    logProbs: Float32Array,
    entropy: Float32Array | null,
    counts: { globalTokens: number; globalSequences: number },
  ): Prepared;
}

/** null: a loss of the core's own, which needs no preparation. */
export function preparationOf(
  loss: NativePolicyLossOptions,
  correction: RolloutCorrectionOptions,
  kwargs: Readonly<Record<string, unknown>>,
): Preparation | null {
  if (loss.mode === BYPASS_MODE) return bypassPreparation(loss, correction);
  const fn = registeredPolicyLoss(loss.mode);
  return fn === null ? null : functionPreparation(fn, loss, kwargs);
}

const without = (batch: Batch, names: readonly string[]): Batch =>
  batch.drop(names.filter((name) => batch.has(name)));

function bypassPreparation(loss: NativePolicyLossOptions, correction: RolloutCorrectionOptions): Preparation {
  return {
    entropy: false,
    columns: ['rolloutLogProbs'],
    prepare(mini, logProbs) {
      const rolloutLogProbs = mini.get('rolloutLogProbs');
      const inputs = { offsets: mini.responseOffsets, responseMask: mini.get('responseMask') };
      const { mode, responseMask, rolloutIsWeights, metrics } = bypassLoss(
        { ...inputs, logProbs, rolloutLogProbs },
        correction,
      );
      const batch = without(mini, ['oldLogProbs', 'rolloutIsWeights'])
        .withResponseMask(responseMask)
        .with({ oldLogProbs: rolloutLogProbs, ...(rolloutIsWeights === null ? {} : { rolloutIsWeights }) });
      return { batch, loss: { ...loss, mode }, metrics };
    },
  };
}

function functionPreparation(
  fn: PolicyLossFunction,
  loss: NativePolicyLossOptions,
  kwargs: Readonly<Record<string, unknown>>,
): Preparation {
  return {
    entropy: true,
    columns: ['oldLogProbs'],
    prepare(mini, logProbs, entropy, counts) {
      const optional = Object.fromEntries(
        ['refLogProbs', 'rolloutIsWeights', 'rolloutLogProbs']
          .filter((name) => mini.has(name))
          .map((name) => [name, mini.get(name)]),
      );
      const { given, metrics } = givenLoss(
        loss.mode,
        fn,
        {
          offsets: mini.responseOffsets,
          responseMask: mini.get('responseMask'),
          logProbs,
          entropy: entropy as Float32Array,
          oldLogProbs: mini.get('oldLogProbs'),
          advantages: mini.get('advantages'),
          ...optional,
          ...counts,
        },
        loss,
        kwargs,
      );
      // The weights are the function's business: the core must not apply them again.
      const batch = withGivenLoss(without(mini, ['rolloutIsWeights']), given);
      return { batch, loss: { ...loss, mode: 'linear' }, metrics };
    },
  };
}

/**
 * One record of metrics per mini-batch. Counts are those of the mini-batch as given, before anything is rejected, as in verl.
 * The learning-rate schedule moves once, as in any update call.
 */
export async function updateStepwise(
  engine: RoleEngine,
  batch: Batch,
  o: {
    miniSizes: readonly number[];
    epochs: number;
    temperature: number;
    replayExperts: boolean;
  },
  preparation: Preparation,
  evaluate: Evaluate,
): Promise<NativeMetrics[]> {
  const { group, name } = engine;
  const scheduleSteps = await rankZero(group, name, 'scheduleSteps', []);
  const records: NativeMetrics[] = [];
  const starts = offsetsOf(o.miniSizes);
  const minis = o.miniSizes.map((_, m) => batch.slice(starts[m], starts[m + 1]));
  for (const mini of Array.from({ length: o.epochs }, () => minis).flat()) {
    const globalTokens = mini.get('responseMask').reduce((sum, bit) => sum + bit, 0);
    const counts = { globalTokens, globalSequences: mini.size };
    const current = await evaluate(mini, preparation.entropy);
    const prepared = preparation.prepare(mini, current.logProbs, current.entropy, counts);
    if (records.length > 0) {
      const steps = await rankZero(group, name, 'optimizerSteps', []);
      await oneToAll(group, name, 'setSteps', [steps, scheduleSteps]);
    }
    const columns = policyColumns(prepared.batch, prepared.loss, o.replayExperts);
    const shards = planUpdate(columns, [mini.size], 1, engine.dataParallelSize);
    const [record] = await engine.splitCollect(
      'updatePolicy',
      shards.map((shard): [NativePolicyBatch, typeof shard.mini, NativePolicyLossOptions, number] => [
        policyBatch(
          shard.batch,
          prepared.loss,
          null,
          o.replayExperts ? joinedExperts('updatePolicy', columns, engine.model.config, shard.indices) : null,
        ),
        { ...shard.mini, globalTokens: [globalTokens] },
        prepared.loss,
        o.temperature,
      ]),
      (byRank) => mergeRanks(byRank, shards),
    );
    records.push({ ...prepared.metrics, ...record });
  }
  return records;
}
