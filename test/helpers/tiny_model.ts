import { resolveSchedule } from '../../ts/engine/schedule_options';
import { ONE_ROPE, ONE_SHAPE } from '../../ts/model/hf_decoder';
import { SOFTMAX_EXPERTS } from '../../ts/model/hf_experts';
import { ONE_STAGE } from '../../ts/model/pipeline_parts';
import type {
  NativeEngineOptions,
  NativeMiniBatches,
  NativeModelConfig,
  NativeMoeConfig,
  NativeOptimizerOptions,
  NativePolicyBatch,
  NativePolicyLossOptions,
  NativeRolloutCommands,
  NativeTokenBatch,
} from '../../ts/native/bridge';

// A decoder of a few hundred parameters and a batch for it, for tests of what carries them around.

const tinyHeadDim = 4;

export function tinyModel(changes: Partial<NativeModelConfig> = {}): NativeModelConfig {
  return {
    family: 'llama',
    head: 'lm',
    vocabSize: 16,
    hiddenSize: 8,
    numLayers: 1,
    numHeads: 2,
    numKvHeads: 1,
    headDim: tinyHeadDim,
    intermediateSize: 16,
    maxPositions: 64,
    norm: 'rms',
    normEps: 1e-6,
    normUnitOffset: false,
    inputNorms: true,
    postNorms: false,
    qkNorm: false,
    wholeQkNorm: false,
    attentionScale: tinyHeadDim ** -0.5,
    attentionSoftcap: 0,
    finalSoftcap: 0,
    logitsScaling: 1,
    residualScale: 1,
    slidingWindows: [0],
    qkvBias: false,
    outputBias: false,
    mlpBias: false,
    gatedMlp: true,
    activation: 'silu',
    positions: 'rope',
    ropeInvFreq: Float64Array.of(1, 0.01),
    ropeAttentionFactor: 1,
    ropePairs: false,
    ...ONE_ROPE,
    ...ONE_SHAPE,
    embeddingScale: 1,
    tiedEmbeddings: false,
    valueBias: false,
    attentionGate: false,
    gatesApart: false,
    attentionSinks: false,
    latent: null,
    moe: null,
    moeLayers: [],
    linear: null,
    linearLayers: [],
    bareLayers: [],
    vision: null,
    prediction: null,
    ...changes,
  };
}

/** Top 2 of 4 experts as Mixtral chooses them. */
export function tinyExperts(changes: Partial<NativeMoeConfig> = {}): NativeMoeConfig {
  return {
    ...SOFTMAX_EXPERTS,
    numExperts: 4,
    topK: 2,
    intermediateSize: 4,
    normalizeTopK: true,
    ...changes,
  };
}

export const tinyOptim: NativeOptimizerOptions = {
  lr: 0.01,
  beta1: 0.9,
  beta2: 0.999,
  eps: 1e-8,
  weightDecay: 0,
  gradClip: 1,
  schedule: resolveSchedule('', {}),
  muon: null,
};

export function tinyEngine(changes: Partial<NativeEngineOptions> = {}): NativeEngineOptions {
  return {
    model: tinyModel(),
    device: 'cpu',
    dtype: 'float32',
    masterDtype: 'float32',
    reduceDtype: 'float32',
    maxTokens: 64,
    gradientCheckpointing: false,
    activationOffload: false,
    optim: tinyOptim,
    seed: 1,
    numThreads: 1,
    lora: null,
    prediction: null,
    sharding: null,
    shardSize: 0,
    parallel: { tp: 1, cp: 1, sequenceParallel: false, ep: 1 },
    ulysses: 1,
    pipeline: ONE_STAGE,
    prefetch: false,
    reduction: 'micro_batch',
    offload: { parameters: false, gradients: false, moments: false },
    ...changes,
  };
}

/** Two sequences of 5 and 3 tokens with prompts of 2 and 1: 5 response tokens. */
export function tinyBatch(): NativeTokenBatch {
  return {
    tokens: Int32Array.of(1, 2, 3, 4, 5, 6, 7, 8),
    seqOffsets: Int32Array.of(0, 5, 8),
    promptLens: Int32Array.of(2, 1),
    routedExperts: null,
    images: null,
  };
}

export function tinyPolicyBatch(): NativePolicyBatch {
  return {
    tokens: tinyBatch(),
    responseMask: Uint8Array.of(1, 1, 1, 1, 1),
    oldLogProbs: new Float32Array(5).fill(-2.7),
    advantages: Float32Array.of(1, 1, 1, -1, -1),
    refLogProbs: null,
    rolloutIsWeights: null,
    givenLoss: null,
    hasGradient: null,
    teacherLogProbs: null,
    teacherIds: null,
  };
}

export const tinyMiniBatches: NativeMiniBatches = {
  offsets: [0, 2],
  globalTokens: [5],
  globalSequences: [2],
  epochs: 1,
};

export const tinyPolicyLoss: NativePolicyLossOptions = {
  mode: 'vanilla',
  clipRatioLow: 0.2,
  clipRatioHigh: 0.2,
  clipRatioC: 3,
  aggregation: 'token-mean',
  scaleFactor: 0,
  entropyCoeff: 0,
  useKlLoss: false,
  klLossCoef: 0.001,
  klLossType: 'low_var_kl',
  routerAuxLossCoef: 0,
  routerZLossCoef: 0,
  extra: {},
  distillation: null,
};

/** One request of two tokens, with the id 1. */
export const tinyTurn: NativeRolloutCommands = {
  images: [],
  submit: [
    {
      id: 1,
      prompt: Int32Array.of(1, 2),
      sampling: {
        maxNewTokens: 1,
        temperature: 1,
        topK: 0,
        topP: 1,
        minP: 0,
        repetitionPenalty: 1,
        presencePenalty: 0,
        frequencyPenalty: 0,
        stopTokenIds: [],
        badWordIds: Int32Array.of(3, 4),
        badWordOffsets: Int32Array.of(0, 2),
        biasedIds: new Int32Array(0),
        biases: new Float32Array(0),
        topLogProbs: 0,
        promptLogProbs: false,
        constrained: false,
      },
      seedAndSalt: BigUint64Array.of(1n, 2n),
      priority: 0,
      images: new Int32Array(0),
    },
  ],
  abort: [],
  masks: [],
  milliseconds: 1,
};
