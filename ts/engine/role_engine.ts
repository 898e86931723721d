import { badOption } from '../base/check_options';
import type { Batch } from '../batch/batch';
import { ColumnMemory } from '../batch/column_memory';
import { requireBatch } from '../batch/require_batch';
import { type LoadedModel, loadModelDirectory } from '../checkpoint/model_dir';
import type { SavedTokenizer } from '../checkpoint/save_files';
import {
  type DataLayout,
  oneToAll,
  ranksByShard,
  rankZero,
  shardCount,
  splitCollect,
  splitLand,
} from '../controller/dispatch';
import { WorkerGroup } from '../controller/worker_group';
import { TroupeError } from '../errors';
import type { Lora } from '../model/adapter_sites';
import type { PredictionUse } from '../model/prediction_layers';
import type { NativeEngineOptions } from '../native/bridge';
import type { EngineArgs, EngineMethod, EngineResult } from '../worker/protocol';
import { checkLayout } from './check_layout';
import { checkSequences } from './check_sequences';
import { memoryMetrics, type UpdateMetrics } from './engine_metrics';
import type { EngineOptions } from './engine_options';
import { resolveEngineOptions } from './engine_options';
import { checkFinite } from './finite_columns';
import { flopUtilisation } from './flops';
import { predictionUse } from './mtp_options';
import { deviceOf, nativeOptions } from './native_options';
import { type OffloadOptions, resolveOffload } from './offload_options';
import { planLora } from './plan_lora';
import { rewardModel, withTower } from './role_model';
import { type Replacement, WeightReplacement } from './weight_replacement';

export type RoleName = 'actor' | 'critic' | 'reward_model';

const DEFAULT_LR: Readonly<Record<RoleName, number>> = {
  actor: 1e-6,
  critic: 1e-5,
  reward_model: 0,
};

/**
 * An engine with a head in every worker of a group, and the model it was made from: what an actor and a critic have in
 * common. It checks what goes in before any work starts; the verbs are theirs.
 */
export class RoleEngine {
  /** What its results are received into. */
  readonly memory = new ColumnMemory();
  private closing: Promise<void> | null = null;
  private readonly replacing: WeightReplacement;

  private constructor(
    readonly role: RoleName,
    readonly name: string,
    readonly group: WorkerGroup,
    private readonly ownsGroup: boolean,
    readonly model: LoadedModel,
    /** Its adapters; null: every weight is trained. */
    readonly lora: Lora | null,
    readonly options: NativeEngineOptions,
    private readonly peakTflops: number | null,
    private readonly maxPositionEmbeddings: number | null,
    /** null: that of the model directory. */
    readonly savedTokenizer: SavedTokenizer | null,
  ) {
    const trained = lora === null ? 'weights' : 'adapter';
    this.replacing = new WeightReplacement(role, {
      importWeights: [trained],
      ...(role === 'actor' ? { updateWeights: ['weights'] } : {}),
      loadCheckpoint: options.optim === null ? [trained] : [trained, 'optimizer'],
    });
  }

  static async create(o: EngineOptions, role: RoleName): Promise<RoleEngine> {
    const resolved = resolveEngineOptions(o, role, DEFAULT_LR[role]);
    const device = deviceOf(`${role} options`, o, resolved);
    const found = loadModelDirectory(resolved.model, role === 'actor' ? 'lm' : 'value', {
      ...resolved,
      predictions: predictionUse(resolved.mtp),
    });
    if (resolved.readsImages && found.config.vision === null)
      throw badOption(
        `${role} options`,
        `readsImages: the model in ${resolved.model} reads text alone: expected false`,
      );
    const frozen = withTower(found, resolved.freezeVisionTower);
    const model = role === 'reward_model' ? rewardModel(frozen) : frozen;
    checkLayout(`${role} options`, resolved, model);
    const lora = resolved.lora === null ? null : planLora(`${role} options.lora`, model, resolved.lora);
    const group =
      o.group ??
      (await WorkerGroup.launch({
        worldSize: resolved.worldSize,
        device,
        ...(resolved.numThreads > 0 ? { numThreads: resolved.numThreads } : {}),
        ...(o.launcher === undefined ? {} : { launcher: o.launcher }),
      }));
    let created = false;
    try {
      const options = nativeOptions(group, device, resolved, model, lora);
      if (options.sharding !== null) await group.connect();
      await group.createEngine(resolved.name, options);
      created = true;
      const engine = new RoleEngine(
        role,
        resolved.name,
        group,
        o.group === undefined,
        model,
        lora,
        options,
        resolved.peakTflops,
        resolved.maxPositionEmbeddings,
        resolved.savedTokenizer,
      );
      await engine.loadWeights();
      return engine;
    } catch (e) {
      // What went wrong first is what the caller must see, also when cleaning up fails after it.
      const cleanup =
        o.group === undefined ? group.close() : created ? group.closeEngine(resolved.name) : null;
      await cleanup?.catch(() => undefined);
      throw e;
    }
  }

  private async loadWeights(): Promise<void> {
    const parameters = await rankZero(this.group, this.name, 'parameters', []);
    const rows = new Map<string, number>();
    // The head that is trained beside adapters is in both.
    const adapters = this.lora?.mapping.filter(({ param }) => !param.startsWith('head.')) ?? [];
    for (const m of [...this.model.mapping, ...adapters])
      rows.set(m.param, (rows.get(m.param) ?? 0) + m.rows);
    for (const { name, shape } of parameters) {
      if (rows.get(name) !== shape[0]) {
        throw new TroupeError(
          'INTERNAL',
          `[model] parameter ${name} has ${shape[0]} rows in the core but ${rows.get(name)} in the name map`,
        );
      }
    }
    const files = [...this.model.files, ...(this.lora?.files ?? [])];
    await oneToAll(this.group, this.name, 'importTensors', ['param', files]);
  }

  /** What the layers that predict further tokens are here; null: there are none. */
  get predictions(): PredictionUse | null {
    const { prediction } = this.model.config;
    return prediction === null ? null : prediction.trained ? 'trained' : 'held';
  }

  /** What an export of all weights is of: with frozen ones, or adapters, the whole model. */
  get exportKind(): 'param' | 'merged' {
    return this.lora === null && this.trainsTower && this.predictions !== 'held' ? 'param' : 'merged';
  }

  /** Takes the weights of another directory with a model of the same shape. */
  async reload(dir: string): Promise<void> {
    this.checkNotClosed();
    const found = loadModelDirectory(dir, this.role === 'actor' ? 'lm' : 'value', {
      maxPositionEmbeddings: this.maxPositionEmbeddings,
      readsImages: this.model.config.vision !== null,
      predictions: this.predictions,
    });
    const { config } = withTower(found, !this.trainsTower);
    if (JSON.stringify(config) !== JSON.stringify(this.model.config)) {
      throw new TroupeError(
        'INVALID_MODEL',
        `[model] ${dir} has another architecture than ${this.model.dir}: expected the same config.json, but for names`,
      );
    }
    await this.replaceWeights('updateWeights', async (touch) => {
      touch();
      await oneToAll(this.group, this.name, 'importTensors', ['param', found.files]);
    });
  }

  /** false: of a model that reads images, whose tower is frozen. */
  get trainsTower(): boolean {
    return this.model.config.vision?.trained ?? true;
  }

  private get dataLayout(): DataLayout {
    const { ulysses, parallel, pipeline } = this.options;
    return { neighbours: ulysses * parallel.cp * parallel.tp, stages: pipeline.stages };
  }

  /** Groups of ranks that have micro-batches of their own: the number of parts that a batch is split into. */
  get dataParallelSize(): number {
    return shardCount(this.group.worldSize, this.dataLayout);
  }

  /**
   * Ranks that generate the same responses together, each with its part of every matrix, of the experts and of the layers; the first of each group speaks
   * for it.
   */
  get generatingRanks(): number[][] {
    const { worldSize } = this.group;
    const { parallel, pipeline } = this.options;
    return ranksByShard(worldSize, { neighbours: parallel.tp * parallel.ep, stages: pipeline.stages });
  }

  /** One shard per data-parallel group; `collect` gets the results in the order of the shards. */
  splitCollect<M extends EngineMethod, R>(
    method: M,
    shards: EngineArgs<M>[],
    collect: (results: EngineResult<M>[]) => R,
  ): Promise<R> {
    return splitCollect(this.group, this.name, method, shards, collect, this.dataLayout);
  }

  /** One shard per data-parallel group; `land` says where the arrays of each result are received. */
  splitLand<M extends EngineMethod>(
    method: M,
    shards: EngineArgs<M>[],
    land: (shard: number, result: EngineResult<M>) => void,
  ): Promise<void> {
    return splitLand(this.group, this.name, method, shards, land, this.dataLayout);
  }

  get device(): 'cpu' | 'cuda' {
    return this.options.device;
  }

  get isOpen(): boolean {
    return this.closing === null;
  }

  /** While the weights are being replaced piece by piece: resolves when that has ended, well or not, or the engine is closed. */
  get replacement(): Promise<void> | null {
    return this.isOpen ? this.replacing.over : null;
  }

  /** A replacement has failed half way: the next one brings all of the weights. */
  get leftHalf(): boolean {
    return this.replacing.leftHalf;
  }

  /** The verbs call this first. */
  checkOpen(): void {
    this.checkNotClosed();
    this.replacing.check();
  }

  private checkNotClosed(): void {
    if (this.closing !== null) throw new TroupeError('CLOSED', `the ${this.role} is closed`);
  }

  /**
   * Runs `replace`, which sets the weights piece by piece and calls `touch` before the first. Until it ends every other verb is refused;
   * when it fails after `touch`, also from then on, because the model is neither the old one nor the new, until a replacement that sets
   * at least as much has succeeded.
   */
  async replaceWeights<T>(what: Replacement, replace: (touch: () => void) => Promise<T>): Promise<T> {
    this.checkNotClosed();
    return await this.replacing.run(what, replace);
  }

  /** Refuses token ids outside the vocabulary and sequences that do not fit, before any work starts. */
  checkSequences(where: string, batch: Batch): void {
    requireBatch(where, batch);
    this.checkOpen();
    const { role, model, options } = this;
    checkSequences(where, batch, { role, model, capacity: options.maxTokens });
  }

  /**
   * Refuses an update when the engine has no optimiser, when a column is missing, and when one of them, or an optional one that is
   * there, holds what is no number. All are [ΣR].
   */
  checkUpdate(
    where: string,
    batch: Batch,
    columns: readonly string[],
    optional: readonly string[] = [],
  ): void {
    this.checkSequences(where, batch);
    if (this.options.optim === null)
      throw badOption(where, `the ${this.role} was created with optim: null, for inference only`);
    const missing = columns.find((name) => !batch.has(name));
    if (missing !== undefined) {
      throw badOption(
        where,
        `the batch has no column '${missing}': add it with batch.with({ ${missing}: ... })`,
      );
    }
    checkFinite(where, batch, [...columns, ...optional]);
  }

  /**
   * perf/*: memory, and mfu when the device's peak is known. `seconds` is the time that `passes` over `batch` took; `hasGradient`
   * [B]: see gradientSequences.
   */
  async perfMetrics(
    batch: Batch,
    passes: number,
    seconds: number,
    hasGradient: Uint8Array | null = null,
  ): Promise<UpdateMetrics> {
    const metrics = memoryMetrics(await this.group.memoryInfo(), this.device);
    const mfu = this.utilisation(batch, seconds, { passes, hasGradient });
    if (mfu !== null) metrics[`perf/mfu/${this.role}`] = mfu;
    return metrics;
  }

  /** Model FLOP utilisation of `seconds` of work over `batch`; null when the device's peak is not known. */
  utilisation(
    batch: Batch,
    seconds: number,
    o: { passes?: number; forwardOnly?: boolean; hasGradient?: Uint8Array | null } = {},
  ): number | null {
    if (this.peakTflops === null) return null;
    const devices = this.group.worldSize;
    return flopUtilisation(this.model.config, batch.sequenceLens, {
      seconds,
      peakTflops: this.peakTflops,
      devices,
      ...o,
    });
  }

  /** Moves parts of the state to the host of every rank, or back; default: all that the engine has. */
  async move(verb: 'offload' | 'onload', parts: OffloadOptions | undefined): Promise<void> {
    this.checkOpen();
    const all =
      this.options.optim === null ? { params: true } : { params: true, grads: true, optimizer: true };
    await oneToAll(this.group, this.name, verb, [resolveOffload(verb, parts ?? all, false)]);
  }

  /** Idempotent; waits for queued work. Workers that were given are left running. */
  close(): Promise<void> {
    this.closing ??= this.ownsGroup ? this.group.close() : this.group.closeEngine(this.name);
    this.replacing.abandon();
    return this.closing;
  }
}
