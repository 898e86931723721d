import { checkOptionNames, choiceOption, numberOption } from '../actor/check_options';
import type { EngineOptions } from '../actor/engine_options';
import { mergeRanks, reduceMetrics, type UpdateMetrics } from '../actor/metrics';
import type { OffloadOptions } from '../actor/offload_options';
import { RoleEngine } from '../actor/role_engine';
import { joinFloats, planUpdate, shardByRank, tokenBatch } from '../actor/shards';
import type { Aggregation } from '../actor/update_options';
import { resolveValueLoss } from '../actor/update_options';
import type { Batch } from '../batch/batch';
import { loadCheckpoint, saveAdapter, saveCheckpoint, saveModel } from '../checkpoint/engine_checkpoint';
import { rankZero } from '../controller/dispatch';
import type {
  NativeMiniBatches,
  NativeTokenBatch,
  NativeValueBatch,
  NativeValueLossOptions,
} from '../native/bridge';
import type { WeightBucket, WeightTransfer } from '../weights/weight_bucket';
import { exportWeights, type WeightExport, type WeightExportOptions } from '../weights/weight_export';
import { importWeights } from '../weights/weight_import';

export interface CriticUpdateOptions {
  /** Sequences per optimiser step, over all ranks; default: the whole batch. It must divide the batch. */
  miniBatchSize?: number;
  ppoEpochs?: number; // 1
  /** Values move at most this far from the old ones, 0.5. */
  clipRangeValue?: number;
  aggregation?: Aggregation; // token-mean
  /** Divisor of seq-mean-token-sum-norm; default: the longest response of the batch, in tokens. */
  scaleFactor?: number;
}

/** critic/vf_loss, critic/vf_clipfrac, critic/vpred_mean, critic/grad_norm, critic/lr, perf/*. */
export type CriticMetrics = UpdateMetrics;

/**
 * A model with a value head: a token-classification directory (`score.weight` [1, H], optional bias), or a causal LM, which gets a
 * fresh head.
 */
export class Critic {
  private constructor(
    /** The engine below, for scripts that need single parameters or gradients. */
    readonly engine: RoleEngine,
  ) {}

  static async create(o: EngineOptions): Promise<Critic> {
    return new Critic(await RoleEngine.create(o, 'critic'));
  }

  /** values [ΣR]: at each response token the head's output at the token before it, as in verl. */
  async computeValues(b: Batch): Promise<{ values: Float32Array }> {
    this.engine.checkSequences('computeValues', b);
    if (b.numResponseTokens === 0) return { values: new Float32Array(0) };
    const shards = shardByRank(b, this.engine.dataParallelSize);
    const args = shards.map((shard): [NativeTokenBatch] => [tokenBatch(shard.batch)]);
    return {
      values: await this.engine.splitCollect('computeValues', args, (parts) => joinFloats(b, shards, parts)),
    };
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
    ]);
    const epochs = numberOption(where, 'ppoEpochs', o.ppoEpochs, 1, { integer: true, min: 1 });
    const longest = b.responseLens.reduce((max, length) => Math.max(max, length), 0);
    const loss = resolveValueLoss(where, o, longest);
    this.engine.checkUpdate(where, b, ['values', 'returns']);
    const shards = planUpdate(where, b, o.miniBatchSize, epochs, this.engine.dataParallelSize);
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

  /** Optimiser steps that changed the weights; one skipped for a non-finite gradient does not count. */
  async optimizerSteps(): Promise<number> {
    this.engine.checkOpen();
    return await rankZero(this.engine.group, this.engine.name, 'optimizerSteps', []);
  }

  /** Writes a Hugging Face token-classification directory, adapters merged. Default dtype: each tensor's as loaded. */
  async saveModel(dir: string, o: { dtype?: 'float32' | 'bfloat16' } = {}): Promise<void> {
    this.engine.checkOpen();
    checkOptionNames('saveModel', o, ['dtype']);
    const dtype =
      o.dtype === undefined
        ? null
        : choiceOption('saveModel', 'dtype', o.dtype, ['float32', 'bfloat16'], 'float32');
    await saveModel(this.engine, dir, dtype);
  }

  /** Writes the adapters and the head as PEFT does: adapter_config.json and adapter_model.safetensors (float32). */
  async saveAdapter(dir: string): Promise<void> {
    await saveAdapter(this.engine, dir);
  }

  /**
   * Writes weights (float32, as a Hugging Face directory; with `lora` the adapters and the head alone), optimiser state and step
   * count, all or nothing.
   */
  async saveCheckpoint(dir: string): Promise<void> {
    this.engine.checkOpen();
    await saveCheckpoint(this.engine, dir);
  }

  /** Continues from what saveCheckpoint wrote. */
  async loadCheckpoint(dir: string): Promise<void> {
    await loadCheckpoint(this.engine, dir);
  }

  /** The weights in buckets, as {@link Actor.exportWeights}. */
  exportWeights(o: WeightExportOptions = {}): WeightExport {
    return exportWeights(this.engine, o);
  }

  /** Replaces all weights by those of a stream such as exportWeights gives; see {@link importWeights}. */
  async importWeights(source: AsyncIterable<WeightBucket> | Iterable<WeightBucket>): Promise<WeightTransfer> {
    return await importWeights(this.engine, source);
  }

  /**
   * Moves parts of the state to the host (pinned memory beside a GPU); default: all. From there they come to the device group by
   * group for their use, so every call works with the same results, until `onload` brings them back for good. Errors:
   * INVALID_ARGUMENT for gradients or moments of one that was created with optim: null.
   */
  async offload(parts?: OffloadOptions): Promise<void> {
    await this.engine.move('offload', parts);
  }

  /** Back to the device; default: all. */
  async onload(parts?: OffloadOptions): Promise<void> {
    await this.engine.move('onload', parts);
  }

  /** Idempotent. */
  close(): Promise<void> {
    return this.engine.close();
  }
}

function valueBatch(b: Batch): NativeValueBatch {
  return {
    tokens: tokenBatch(b),
    responseMask: b.get('responseMask'),
    values: b.get('values'),
    returns: b.get('returns'),
  };
}
