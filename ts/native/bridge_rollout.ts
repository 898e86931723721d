// What goes through the rollout's functions of the native addon (bridge.ts); the rules of bridge_data.ts hold.
import type { NativeImage } from './bridge_data';

/** Of the layers' weights. */
export type NativeQuantization = 'none' | 'int8' | 'fp8';

export interface NativeRolloutOptions {
  /** That run at the same time. */
  maxSequences: number;
  /** Positions of a step. */
  maxStepTokens: number;
  /** Of a sequence; 0: the model's. */
  maxPositions: number;
  /** 0: of memoryShare. */
  kvCacheBytes: number;
  memoryShare: number;
  chunkedPrefill: boolean;
  prefixCaching: boolean;
  /** Neighbouring ranks that decode together, where training has whole matrices on each; 1: none. */
  tensorParallel: number;
  quantization: NativeQuantization;
  /** Latents in the place of keys and values: of a model with latent attention. */
  latentCache: boolean;
  routedExperts: boolean;
  drafts: NativeDraftOptions | null;
}

export interface NativeDraftOptions {
  numTokens: number;
  /** By the model's own layer; otherwise by looking up. */
  predicts: boolean;
  minMatch: number;
  maxMatch: number;
  maxSequences: number;
  rememberedTokens: number;
}

export interface NativeRequestSampling {
  maxNewTokens: number;
  temperature: number; // 0 = greedy
  topK: number; // 0 = off
  topP: number; // 1 = off
  minP: number; // 0 = off
  repetitionPenalty: number; // 1 = off
  presencePenalty: number; // 0 = off
  frequencyPenalty: number; // 0 = off
  stopTokenIds: number[];
  badWordIds: Int32Array;
  badWordOffsets: Int32Array; // [words + 1]
  biasedIds: Int32Array;
  biases: Float32Array;
  topLogProbs: number;
  promptLogProbs: boolean;
  constrained: boolean;
}

export interface NativeRolloutRequest {
  id: number;
  prompt: Int32Array;
  sampling: NativeRequestSampling;
  seedAndSalt: BigUint64Array; // [2]
  priority: number;
  images: Int32Array; // of the prompt, in order: numbers of those of the commands
}

export interface NativeTokenMask {
  id: number;
  words: Int32Array; // token t at bit t % 32 of word t / 32; empty: every token
}

export interface NativeRolloutCommands {
  images: NativeImage[]; // that requests of `submit` have
  submit: NativeRolloutRequest[];
  abort: number[];
  masks: NativeTokenMask[];
  milliseconds: number;
}

export interface NativeRolloutOutput {
  id: number;
  tokens: Int32Array;
  logProbs: Float32Array;
  topTokens: Int32Array; // [tokens * topLogProbs]
  topLogProbs: Float32Array;
  promptLogProbs: Float32Array | null;
  /** Of every position but the last (native/batch/routed_experts.h), with the last token. */
  routedExperts: Uint8Array | null;
  version: number;
  cachedTokens: number;
  finish: 'none' | 'stop' | 'length' | 'abort';
  error: string | null;
  nonFinite: boolean;
  needsMask: boolean;
}

export interface NativeRolloutStats {
  running: number;
  waiting: number;
  pages: number;
  pagesHeld: number;
  pagesIndexed: number;
  cacheBytes: number;
  promptTokens: number;
  cachedPromptTokens: number;
  generatedTokens: number;
  computedTokens: number;
  drafts: number;
  draftedTokens: number;
  acceptedTokens: number;
  hostChoices: number;
  steps: number;
  preemptions: number;
  version: number;
}

export interface NativeRolloutTurn {
  outputs: NativeRolloutOutput[];
  stats: NativeRolloutStats;
  /** false: no step was made, beginRollout comes first. */
  ready: boolean;
  idle: boolean;
}
