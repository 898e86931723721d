// What a caller says of our own engine, and as its workers take it.
import {
  badOption,
  checkOptionNames,
  choiceOption,
  countOption,
  flagOption,
  numberOption,
} from '../../base/check_options';
import { RUN_LIMITS } from '../../base/limits';
import { show } from '../../base/text';
import type { RoleEngine } from '../../engine/role_engine';
import { expertBytes } from '../../engine/routed_experts';
import { latentCacheProblem } from '../../model/latent_cache';
import { tensorProblem } from '../../model/tensor_parts';
import type { NativeQuantization, NativeRolloutOptions } from '../../native/bridge';
import { type ModelBounds, refuseOutside } from '../check_request';
import { draftOptions, type SpeculativeConfig } from './speculative_options';

/** None of them changes a token, but `quantization`, `tensorParallel` and `latentCache` where rounding decides, and `eosTokenIds`, which end responses. */
export interface NativeRolloutConfig {
  /** Requests that run at the same time on a rank, 256. */
  maxNumSeqs?: number;
  /** Tokens of a step, prompts and decodes together, 8192. */
  maxNumBatchedTokens?: number;
  /** Tokens of a prompt and its response; default: the positions of the model. */
  maxModelLen?: number;
  /** Share of the device's memory for keys and values, less what is in use, 0.5; on a CPU a quarter of it, shared by the ranks. */
  gpuMemoryUtilization?: number;
  /** Bytes for keys and values of a rank, in place of a share. */
  kvCacheBytes?: number;
  /** Cut prompts over steps, true. */
  enableChunkedPrefill?: boolean;
  /** Keep what was computed for later requests that begin alike, true. */
  enablePrefixCaching?: boolean;
  /** Give the memory of keys and values, and of the weights in the form for decoding, back whenever nothing runs, true. */
  freeCacheEngine?: boolean;
  /**
   * Weights of the layers with 8 bits and a scale per output, without embeddings and head: whole numbers, or floating point (e4m3). Default: the
   * compute dtype. Not of mixtures of experts.
   */
  quantization?: 'int8' | 'fp8';
  /**
   * Of a model with latent attention (DeepSeek, Kimi K2, GLM-4.7-Flash): keep the latents of a token in the place of the keys and values of all heads, false. For
   * DeepSeek-V3 that is 1/85 of the memory. Log-probs then round otherwise than those of training.
   */
  latentCache?: boolean;
  /**
   * Neighbouring ranks that decode together, each with its part of every matrix and of the cache, 1: for a model that does not fit on one beside its
   * cache, trained with whole matrices (not under `parallel` or `pipeline`, which generation follows). Log-probs then round as under tensor parallelism.
   */
  tensorParallel?: number;
  /** Draft tokens and check them; default: one token of a request per step. */
  speculative?: SpeculativeConfig;
  /** What ends a response whose request says nothing of it, as its last token; default: the ids of the model directory. */
  eosTokenIds?: readonly number[];
  /** Also say which experts of a mixture the tokens went to, false: `routedExperts` of results, and that column of batches. */
  routedExperts?: boolean;
}

const KEYS = [
  'maxNumSeqs',
  'maxNumBatchedTokens',
  'maxModelLen',
  'gpuMemoryUtilization',
  'kvCacheBytes',
  'enableChunkedPrefill',
  'enablePrefixCaching',
  'freeCacheEngine',
  'quantization',
  'latentCache',
  'tensorParallel',
  'speculative',
  'eosTokenIds',
  'routedExperts',
];

export function nativeOptions(engine: RoleEngine, o: NativeRolloutConfig): NativeRolloutOptions {
  const where = 'rollout options';
  checkOptionNames(where, o, KEYS);
  // Of the memory of a host its workers take a share each; a GPU is its worker's own.
  const sharing = engine.device === 'cpu' ? engine.group.ranksPerHost : 1;
  const utilization = numberOption(where, 'gpuMemoryUtilization', o.gpuMemoryUtilization, 0.5, {
    above: 0,
    max: 1,
  });
  return {
    maxSequences: countOption(where, 'maxNumSeqs', o.maxNumSeqs, RUN_LIMITS.sequences, 256),
    maxStepTokens: countOption(where, 'maxNumBatchedTokens', o.maxNumBatchedTokens, RUN_LIMITS.tokens, 8192),
    maxPositions: numberOption(where, 'maxModelLen', o.maxModelLen, engine.model.config.maxPositions, {
      integer: true,
      min: 2,
      max: engine.model.config.maxPositions,
    }),
    kvCacheBytes: numberOption(where, 'kvCacheBytes', o.kvCacheBytes, 0, { integer: true, min: 0 }),
    memoryShare: utilization / sharing,
    chunkedPrefill: flagOption(where, 'enableChunkedPrefill', o.enableChunkedPrefill, true),
    prefixCaching: flagOption(where, 'enablePrefixCaching', o.enablePrefixCaching, true),
    tensorParallel: tensorParallelOf(where, engine, o.tensorParallel),
    quantization: quantizationOf(where, engine, o.quantization),
    latentCache: latentCacheOf(where, engine, o.latentCache),
    routedExperts: routedExpertsOf(where, engine, o.routedExperts),
    drafts: draftOptions(engine, o.speculative),
  };
}

/** What requests are checked against. */
export function boundsOf(
  { model }: RoleEngine,
  { maxPositions }: NativeRolloutOptions,
  o: NativeRolloutConfig,
): ModelBounds {
  const { vocabSize } = model.config;
  const eosTokenIds = o.eosTokenIds ?? model.eosTokenIds;
  if (!Array.isArray(eosTokenIds))
    throw badOption(
      'rollout options',
      `eosTokenIds: expected an array of token ids but got ${show(eosTokenIds)}`,
    );
  if (o.eosTokenIds !== undefined) refuseOutside('rollout options', 'eosTokenIds', eosTokenIds, vocabSize);
  return { vocabSize, maxTokens: maxPositions, eosTokenIds };
}

function routedExpertsOf(where: string, { model }: RoleEngine, given: unknown): boolean {
  const wanted = flagOption(where, 'routedExperts', given, false);
  if (wanted) expertBytes(`${where}.routedExperts`, model.config);
  return wanted;
}

function tensorParallelOf(where: string, engine: RoleEngine, given: unknown): number {
  const { worldSize } = engine.group;
  const tp = numberOption(where, 'tensorParallel', given, 1, { integer: true, min: 1 });
  const refuse = (expected: string) => badOption(where, `tensorParallel: ${expected}, got ${tp}`);
  if (tp === 1) return tp;
  if (engine.generatingRanks.length !== worldSize)
    throw refuse('expected 1 where training cuts the model, since generation is laid out alike');
  if (worldSize % tp !== 0) throw refuse(`expected a divisor of the ${worldSize} workers`);
  const problem = tensorProblem(tp, engine.model.config);
  if (problem !== null) throw refuse(problem);
  return tp;
}

function latentCacheOf(where: string, { model }: RoleEngine, given: unknown): boolean {
  const wanted = flagOption(where, 'latentCache', given, false);
  const problem = latentCacheProblem(model.config);
  if (wanted && problem !== null) throw badOption(where, `latentCache: ${problem}: leave it out`);
  return wanted;
}

function quantizationOf(where: string, { model }: RoleEngine, given: unknown): NativeQuantization {
  if (given === undefined) return 'none';
  if (model.config.moe !== null)
    throw badOption(
      where,
      'quantization: the weights of mixtures of experts cannot be quantised: leave it out',
    );
  return choiceOption(where, 'quantization', given, ['int8', 'fp8'], 'int8');
}
