import {
  badOption,
  checkOptionNames,
  countOption,
  flagOption,
  numberOption,
  requireOptions,
  temperatureOption,
} from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import type { Batch, Seqs } from '../batch/batch';
import type { PromptImage } from '../batch/prompt_image';
import { requireBatch } from '../batch/require_batch';
import { mergeRanks, reduceMetrics, type UpdateMetrics } from '../engine/engine_metrics';
import type { EngineOptions } from '../engine/engine_options';
import { responseColumns } from '../engine/response_columns';
import { RoleEngine } from '../engine/role_engine';
import {
  checkReplay,
  expertBytes,
  expertPlaces,
  joinedExperts,
  routingBytes,
  splitExperts,
} from '../engine/routed_experts';
import { checkMiniBatches, planUpdate, tokenBatch } from '../engine/shards';
import { checkTopIds, checkTopLogProbs, splitTop, topPlaces } from '../engine/top_tokens';
import type { NativeLogProbResult, NativeMetrics, NativePolicyBatch, NativeSftBatch } from '../native/bridge';
import { sampleBatch } from '../rollout/batch';
import type { RolloutEngine } from '../rollout/engine';
import type { NativeRolloutConfig } from '../rollout/native/native_options';
import { NativeRollout } from '../rollout/native/native_rollout';
import type { SamplingOptions } from '../rollout/sampling';
import { land } from '../worker/message_arrays';
import type { EngineArgs } from '../worker/protocol';
import { gradientSequences } from './gradient_sequences';
import { policyBatch, policyColumns, teacherColumns } from './policy_batch';
import { preparationOf, updateStepwise } from './stepwise_update';
import { TrainedModel } from './trained_model';
import type { PolicyLossOptions } from './update_options';
import { resolvePolicyLoss, resolveSftLoss } from './update_options';

/** What an actor is made of, and how much its rollout may take. */
export interface ActorOptions extends EngineOptions {
  rollout?: NativeRolloutConfig;
}

export interface LogProbOptions {
  /** Divides the logits, 1. Use the temperature of the rollout. */
  temperature?: number;
  /** Also return entropies. */
  entropy?: boolean;
  /** Also return Σπ² of each token's distribution. */
  sumPiSquared?: boolean;
  /** Of the model without its adapters (option `lora`): the reference policy. */
  disableAdapter?: boolean;
  /** Of a mixture of experts: also return which ones each token went to. */
  recordExperts?: boolean;
  /** Send each token to the experts of the column `routedExperts`, with weights of the router as it is now. */
  replayExperts?: boolean;
  /** Also return so many of the likeliest tokens in the place of each response token, 0. */
  topK?: number;
}

/**
 * logProbs [ΣR]; entropy and sumPiSquared [ΣR], or null when they were not asked for. routedExperts, where it was: what the column of that name holds, per
 * sequence [L * bytes of a token]: for each layer with experts the topK chosen, the likeliest first, a byte each, or two (little-endian) of more
 * than 256 experts; zeros for the last token, which is not computed. topLogProbs and topIds, where they were: per sequence [R * topK], the likeliest
 * token of each position first.
 */
export interface LogProbResult extends Omit<NativeLogProbResult, 'routedExperts' | 'topLogProbs' | 'topIds'> {
  routedExperts?: Uint8Array[];
  topLogProbs?: Float32Array[];
  topIds?: Int32Array[];
}

export interface PolicyUpdateOptions {
  /** Sequences per optimiser step, over all ranks; default: the whole batch. It must divide the batch; or those of each step, in order. */
  miniBatchSize?: number | readonly number[];
  /** Passes over the batch, 1. */
  ppoEpochs?: number;
  temperature?: number; // 1
  loss?: PolicyLossOptions;
  /** Send each token to the experts of the column `routedExperts` (router replay), with weights of the router as it is now; false. */
  replayExperts?: boolean;
}

/** actor/pg_loss, actor/pg_clipfrac, actor/ppo_kl, actor/entropy, actor/grad_norm, actor/lr, perf/*, ... */
export type PolicyMetrics = UpdateMetrics;

const LOG_PROB_COLUMNS = ['logProbs', 'entropy', 'sumPiSquared'] as const;
const NO_COLUMNS = { entropy: null, sumPiSquared: null };

/**
 * A causal language model that scores, generates and learns, in worker processes of its own or of a given group. Errors are
 * TroupeErrors: INVALID_ARGUMENT for what a caller passed, INVALID_MODEL for what lies in the model directory.
 */
export class Actor extends TrainedModel {
  /** Serves requests one by one from the weights as they are, beside everything else that the actor does. */
  readonly rollout: RolloutEngine;
  readonly #eosTokenIds: readonly number[];

  private constructor(engine: RoleEngine, rollout: NativeRolloutConfig | undefined) {
    super(engine);
    const own = new NativeRollout(engine, rollout);
    this.rollout = own;
    this.#eosTokenIds = own.bounds.eosTokenIds;
  }

  /** Reads and checks the model directory, starts the workers (unless given), and loads the weights. */
  static async create(o: ActorOptions): Promise<Actor> {
    requireOptions('actor options', o);
    const { rollout, ...engine } = o;
    const workers = await RoleEngine.create(engine, 'actor');
    try {
      return new Actor(workers, rollout);
    } catch (e) {
      // Options of the rollout that the model does not allow: nobody else knows of the workers.
      await workers.close().catch(() => undefined);
      throw e;
    }
  }

  /** What ends a response unless a request says otherwise: those of `rollout.eosTokenIds`, else of the model directory. */
  get eosTokenIds(): number[] {
    return [...this.#eosTokenIds];
  }

  /** Log-probability [ΣR] of each response token given all tokens before it, and what else was asked for. */
  async computeLogProb(b: Batch, o: LogProbOptions = {}): Promise<LogProbResult> {
    const where = 'computeLogProb';
    checkOptionNames(where, o, [
      'temperature',
      'entropy',
      'sumPiSquared',
      'disableAdapter',
      'recordExperts',
      'replayExperts',
      'topK',
    ]);
    const temperature = temperatureOption(where, o.temperature, false);
    const entropy = flagOption(where, 'entropy', o.entropy, false);
    const sumPiSquared = flagOption(where, 'sumPiSquared', o.sumPiSquared, false);
    const disableAdapter = flagOption(where, 'disableAdapter', o.disableAdapter, false);
    const record = flagOption(where, 'recordExperts', o.recordExperts, false);
    const replay = flagOption(where, 'replayExperts', o.replayExperts, false);
    const { config } = this.engine.model;
    const topK = numberOption(where, 'topK', o.topK, 0, { integer: true, min: 0, max: config.vocabSize });
    if (record) expertBytes(where, config);
    if (disableAdapter && this.engine.lora === null)
      throw badOption(
        where,
        'disableAdapter: the actor was created without the option lora and has no adapter',
      );
    this.engine.checkSequences(where, b);
    if (replay) checkReplay(where, b, config);
    const empty = (wanted: boolean): Float32Array | null => (wanted ? new Float32Array(0) : null);
    if (b.numResponseTokens === 0) {
      return {
        logProbs: new Float32Array(0),
        entropy: empty(entropy),
        sumPiSquared: empty(sumPiSquared),
        ...(record
          ? { routedExperts: splitExperts(b, new Uint8Array(b.numTokens * routingBytes(config)), config) }
          : {}),
        ...(topK === 0
          ? {}
          : {
              topLogProbs: splitTop(b, new Float32Array(0), topK),
              topIds: splitTop(b, new Int32Array(0), topK),
            }),
      };
    }
    const routed = record ? new Uint8Array(b.numTokens * routingBytes(config)) : null;
    const size = b.numResponseTokens * topK;
    const top = topK === 0 ? null : { logProbs: new Float32Array(size), ids: new Int32Array(size) };
    const wanted = { logProbs: true, entropy, sumPiSquared };
    const names = LOG_PROB_COLUMNS.filter((name) => wanted[name]);
    const columns = await responseColumns(
      this.engine,
      b,
      'computeLogProb',
      names,
      (tokens, indices): EngineArgs<'computeLogProb'> => [
        replay ? { ...tokens, routedExperts: joinedExperts(where, b, config, indices) } : tokens,
        temperature,
        entropy,
        sumPiSquared,
        disableAdapter,
        record,
        topK,
      ],
      ({ routedExperts: _, topLogProbs: _t, topIds: _i, ...result }) => result,
      ({ routedExperts, topLogProbs, topIds }, indices) => {
        if (top !== null) {
          land(topLogProbs as Float32Array, topPlaces(b, indices, top.logProbs, topK));
          land(topIds as Int32Array, topPlaces(b, indices, top.ids, topK));
        }
        if (routed !== null) land(routedExperts as Uint8Array, expertPlaces(b, indices, routed, config));
      },
    );
    return {
      ...NO_COLUMNS,
      ...columns,
      ...(routed === null ? {} : { routedExperts: splitExperts(b, routed, config) }),
      ...(top === null
        ? {}
        : { topLogProbs: splitTop(b, top.logProbs, topK), topIds: splitTop(b, top.ids, topK) }),
    };
  }

  /**
   * One call is `ppoEpochs` passes over the batch in mini-batches, in order, with one optimiser step each. Needs oldLogProbs and
   * advantages, refLogProbs with `loss.useKlLoss`, and what `loss.distillation` says of a teacher; uses rolloutIsWeights when it is there. Mode bypass_mode needs
   * rolloutLogProbs instead of oldLogProbs. A registered loss that fails ends the call before the step of its mini-batch;
   * the steps before it are done.
   */
  async updatePolicy(b: Batch, o: PolicyUpdateOptions = {}): Promise<PolicyMetrics> {
    const where = 'updatePolicy';
    checkOptionNames(where, o, ['miniBatchSize', 'ppoEpochs', 'temperature', 'loss', 'replayExperts']);
    const epochs = countOption(where, 'ppoEpochs', o.ppoEpochs, RUN_LIMITS.passes, 1);
    const temperature = temperatureOption(where, o.temperature, false);
    const replayExperts = flagOption(where, 'replayExperts', o.replayExperts, false);
    requireBatch(where, b);
    const { config } = this.engine.model;
    if (replayExperts) checkReplay(where, b, config);
    const experts = (indices: readonly number[]): Uint8Array | null =>
      replayExperts ? joinedExperts(where, b, config, indices) : null;
    const longest = b.responseLens.reduce((max, length) => Math.max(max, length), 0);
    const loss = resolvePolicyLoss(`${where} loss`, o.loss ?? {}, longest);
    const preparation = preparationOf(loss, o.loss?.rolloutCorrection ?? {}, o.loss?.kwargs ?? {});
    const columns = [
      ...(preparation?.columns ?? ['oldLogProbs']),
      'advantages',
      ...(loss.useKlLoss ? ['refLogProbs'] : []),
      ...teacherColumns(loss),
    ];
    this.engine.checkUpdate(where, b, columns, ['rolloutIsWeights']);
    if (columns.includes('teacherTopIds')) {
      checkTopIds(where, b, this.engine.model);
      checkTopLogProbs(where, b);
    }
    const miniSizes = checkMiniBatches(where, b, o.miniBatchSize);
    const started = performance.now();
    if (preparation !== null) {
      const records = await updateStepwise(
        this.engine,
        b,
        { miniSizes, epochs, temperature, replayExperts },
        preparation,
        (mini, entropy) => this.computeLogProb(mini, { temperature, entropy, replayExperts }),
      );
      return this.updateMetrics(b, epochs, started, records);
    }
    // Further tokens have a loss in every sequence.
    const hasGradient = this.engine.predictions === 'trained' ? null : gradientSequences(b, loss);
    const shards = planUpdate(
      policyColumns(b, loss, replayExperts),
      miniSizes,
      epochs,
      this.engine.dataParallelSize,
      hasGradient,
    );
    const records = await this.engine.splitCollect(
      'updatePolicy',
      shards.map((shard): [NativePolicyBatch, typeof shard.mini, typeof loss, number] => [
        policyBatch(shard.batch, loss, shard.hasGradient, experts(shard.indices)),
        shard.mini,
        loss,
        temperature,
      ]),
      (byRank) => mergeRanks(byRank, shards),
    );
    const without = hasGradient?.reduce((count, flag) => count + 1 - flag, 0) ?? 0;
    return {
      ...(await this.updateMetrics(b, epochs, started, records, hasGradient)),
      'actor/no_gradient_ratio': without / b.size,
    };
  }

  /** Supervised: cross-entropy of the response tokens whose responseMask is 1, averaged over each mini-batch. */
  async updateSft(
    b: Batch,
    o: { miniBatchSize?: number | readonly number[]; epochs?: number; routerZLossCoef?: number } = {},
  ): Promise<UpdateMetrics> {
    const where = 'updateSft';
    checkOptionNames(where, o, ['miniBatchSize', 'epochs', 'routerZLossCoef']);
    const epochs = countOption(where, 'epochs', o.epochs, RUN_LIMITS.passes, 1);
    const loss = resolveSftLoss(where, o);
    this.engine.checkUpdate(where, b, []);
    const miniSizes = checkMiniBatches(where, b, o.miniBatchSize);
    const shards = planUpdate(b.select([]), miniSizes, epochs, this.engine.dataParallelSize);
    const started = performance.now();
    const records = await this.engine.splitCollect(
      'updateSft',
      shards.map((shard): [NativeSftBatch, typeof shard.mini, typeof loss] => [
        { tokens: tokenBatch(shard.batch), lossMask: shard.batch.get('responseMask') },
        shard.mini,
        loss,
      ]),
      (byRank) => mergeRanks(byRank, shards),
    );
    return this.updateMetrics(b, epochs, started, records);
  }

  /**
   * Samples `n` responses to each prompt; sequence i * n + k of the result is sample k of prompt i. The result has rolloutLogProbs
   * of the sampled tokens (at the sampling temperature, before topK and topP) and a responseMask of ones. The same seed
   * gives the same samples of a prompt, whatever else is in the batch. `images`: of each prompt, for a model that reads images.
   */
  async generate(
    prompts: Seqs,
    o: SamplingOptions,
    images: readonly (readonly PromptImage[])[] | null = null,
  ): Promise<Batch> {
    const { vocabSize } = this.engine.model.config;
    const outside = Array.isArray(o?.stopTokenIds) ? o.stopTokenIds.find((id) => id >= vocabSize) : undefined;
    if (outside !== undefined)
      throw badOption('generate', `stopTokenIds: ${outside} is outside the vocabulary of ${vocabSize}`);
    return sampleBatch(this.rollout, prompts, o, {
      images,
      where: 'generate',
      check: (batch) => this.engine.checkSequences('generate', batch),
    });
  }

  /** Name of the engine in its workers. */
  get name(): string {
    return this.engine.name;
  }

  private async updateMetrics(
    b: Batch,
    epochs: number,
    started: number,
    records: NativeMetrics[],
    hasGradient: Uint8Array | null = null,
  ): Promise<UpdateMetrics> {
    const seconds = (performance.now() - started) / 1000;
    return {
      ...reduceMetrics('actor', records),
      ...(await this.engine.perfMetrics(b, epochs, seconds, hasGradient)),
    };
  }
}
