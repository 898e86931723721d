import { TrainedModel } from '../actor/trained_model';
import { resolveValueLoss } from '../actor/update_options';
import type { Aggregation } from '../algorithms/names';
import { checkOptionNames, countOption } from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import type { Batch } from '../batch/batch';
import { requireBatch } from '../batch/require_batch';
import type { SentBatch } from '../engine/batch_part';
import { mergeRanks, reduceMetrics, type UpdateMetrics } from '../engine/engine_metrics';
import type { EngineOptions } from '../engine/engine_options';
import { responseColumns } from '../engine/response_columns';
import { RoleEngine } from '../engine/role_engine';
import { checkMiniBatches, planUpdate, tokenBatch } from '../engine/shards';
import type { NativeMiniBatches, NativeValueBatch, NativeValueLossOptions } from '../native/bridge';
import type { EngineArgs } from '../worker/protocol';

export interface CriticUpdateOptions {
  /** Sequences per optimiser step, over all ranks; default: the whole batch. It must divide the batch; or those of each step, in order. */
  miniBatchSize?: number | readonly number[];
  ppoEpochs?: number; // 1
  /** Values move at most this far from the old ones, 0.5. */
  clipRangeValue?: number;
  aggregation?: Aggregation; // token-mean
  /** Divisor of seq-mean-token-sum-norm; default: the longest response of the batch, in tokens. */
  scaleFactor?: number;
  /** Of a mixture of experts: weight of the z-loss of the routers (docs/algorithms.md), 0. */
  routerZLossCoef?: number;
}

/** critic/vf_loss, critic/vf_clipfrac, critic/vpred_mean, critic/grad_norm, critic/lr, perf/*. */
export type CriticMetrics = UpdateMetrics;

/**
 * A model with a value head: a token-classification directory (`score.weight` [1, H], optional bias), or a causal LM, which gets a
 * fresh head.
 */
export class Critic extends TrainedModel {
  private constructor(engine: RoleEngine) {
    super(engine);
  }

  static async create(o: EngineOptions): Promise<Critic> {
    return new Critic(await RoleEngine.create(o, 'critic'));
  }

  /** values [ΣR]: at each response token the head's output at the token before it, as in verl. */
  async computeValues(b: Batch): Promise<{ values: Float32Array }> {
    this.engine.checkSequences('computeValues', b);
    if (b.numResponseTokens === 0) return { values: new Float32Array(0) };
    return responseColumns(
      this.engine,
      b,
      'computeValues',
      ['values'],
      (tokens): EngineArgs<'computeValues'> => [tokens],
      (values) => ({ values }),
    );
  }

  /** `ppoEpochs` passes over the batch in mini-batches, one optimiser step each. Needs values (the old ones) and returns. */
  async updateCritic(b: Batch, o: CriticUpdateOptions = {}): Promise<CriticMetrics> {
    const where = 'updateCritic';
    checkOptionNames(where, o, [
      'miniBatchSize',
      'ppoEpochs',
      'clipRangeValue',
      'aggregation',
      'scaleFactor',
      'routerZLossCoef',
    ]);
    const epochs = countOption(where, 'ppoEpochs', o.ppoEpochs, RUN_LIMITS.passes, 1);
    requireBatch(where, b);
    const longest = b.responseLens.reduce((max, length) => Math.max(max, length), 0);
    const loss = resolveValueLoss(where, o, longest);
    this.engine.checkUpdate(where, b, ['values', 'returns']);
    const miniSizes = checkMiniBatches(where, b, o.miniBatchSize);
    const columns = b.select(['values', 'returns']);
    const shards = planUpdate(columns, miniSizes, epochs, this.engine.dataParallelSize);
    const started = performance.now();
    const records = await this.engine.splitCollect(
      'updateCritic',
      shards.map(({ batch, mini }): [NativeValueBatch, NativeMiniBatches, NativeValueLossOptions] => [
        valueBatch(batch),
        mini,
        loss,
      ]),
      (byRank) => mergeRanks(byRank, shards),
    );
    const seconds = (performance.now() - started) / 1000;
    return { ...reduceMetrics('critic', records), ...(await this.engine.perfMetrics(b, epochs, seconds)) };
  }

  /** Name of the engine in its workers. */
  get name(): string {
    return this.engine.name;
  }
}

function valueBatch(b: SentBatch): NativeValueBatch {
  return {
    tokens: tokenBatch(b),
    responseMask: b.get('responseMask'),
    values: b.get('values'),
    returns: b.get('returns'),
  };
}
