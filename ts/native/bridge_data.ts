// What goes through the native addon's functions (bridge.ts): same names, same order as native/engine/engine.h and
// native/binding. Every property is always present; `null` says "none".
import type { NativeGivenLoss } from './bridge_losses';
import type { NativeModelConfig } from './bridge_model';

/** Matrices of linear layers by Muon (native/optim/muon.h). */
export interface NativeMuonOptions {
  momentum: number;
  nesterov: boolean;
  scaleMode: 'spectral' | 'unit_rms_norm' | 'shape_scaling';
  extraScaleFactor: number;
  coefficientType: 'simple' | 'quintic' | 'polar_express' | 'cans' | 'aol' | 'deepseekv4';
  numNsSteps: number;
  /** Of the iteration's products. */
  dtype: 'float32' | 'bfloat16';
}

/** native/optim/schedule.h, Schedule. */
export interface NativeSchedule {
  kind: 'constant' | 'cosine' | 'linear' | 'inverse_square_root' | 'WSD';
  warmupSteps: number;
  totalSteps: number;
  minLrRatio: number;
  initLrRatio: number;
  numCycles: number;
  firstStep: number;
  wsdDecaySteps: number;
  wsdDecay: 'linear' | 'cosine' | 'exponential' | 'minus_sqrt';
}

export interface NativeOptimizerOptions {
  lr: number;
  beta1: number;
  beta2: number;
  eps: number;
  weightDecay: number;
  gradClip: number;
  schedule: NativeSchedule;
  /** null: AdamW of everything. */
  muon: NativeMuonOptions | null;
}

/** A place for an adapter: rows of the weight `param` (native/engine/engine.h, AdapterSite). */
export interface NativeAdapterSite {
  name: string;
  param: string;
  row: number;
  rows: number;
}

export interface NativeLoraOptions {
  rank: number;
  /** alpha / rank */
  scale: number;
  sites: NativeAdapterSite[];
}

export interface NativePredictionOptions {
  /** Of the loss, the mean over the layers. */
  coef: number;
  /** The decoder and the embeddings learn nothing from it. */
  detach: boolean;
}

export interface NativeEngineOptions {
  model: NativeModelConfig;
  device: 'cpu' | 'cuda';
  dtype: 'float32' | 'bfloat16';
  /** Of what is trained and of its moments; bfloat16 where that is `dtype`, too. */
  masterDtype: 'float32' | 'bfloat16';
  maxTokens: number;
  gradientCheckpointing: boolean;
  /** What is kept of recomputed blocks waits on the host. */
  activationOffload: boolean;
  optim: NativeOptimizerOptions | null;
  /** null: every parameter is trained. */
  lora: NativeLoraOptions | null;
  /** How layers that predict further tokens are trained; null: the model has none. */
  prediction: NativePredictionOptions | null;
  seed: number;
  numThreads: number;
  /** How the model is spread over the group that joinGroup made; null: this process holds a model of its own. */
  sharding: Sharding | null;
  /** Ranks that share one copy of the state; 0: all. */
  shardSize: number;
  /** Neighbouring ranks that share micro-batches: they are called with the same data (native/ulysses). */
  ulysses: number;
  parallel: NativeParallelOptions;
  pipeline: NativePipelineOptions;
  /** Gather the next group of parameters while one is at work. */
  prefetch: boolean;
  reduction: Reduction;
  /** Of sharded gradients on their way to the rank that sums them. */
  reduceDtype: 'float32' | 'bfloat16';
  /** What begins on the host. */
  offload: NativeStateKinds;
}

/** Ranks that share every matrix (native/megatron/parallel_dims.h, native/megatron/exchange.h). */
export interface NativeParallelOptions {
  /** Neighbouring ranks of a tensor-parallel group; they are called with the same data. */
  tp: number;
  /**
   * Neighbouring tensor-parallel groups that each have some rows of every sequence (native/megatron/context_group.h); they are called with the
   * same data.
   */
  cp: number;
  /** What is computed row by row between matrices is computed on 1 / tp of the rows. */
  sequenceParallel: boolean;
  /** Ranks that share the experts: neighbours of data parallelism, which generate together (native/megatron/expert_rows.h). */
  ep: number;
}

/** How the layers are spread over the stages of a pipeline, and in which order updates run (native/model/stage_range.h, native/megatron/schedule.h). */
export interface NativePipelineOptions {
  /** Ranks of a pipeline are worldSize / stages apart, and are called with the same data. */
  stages: number;
  /** Parts of consecutive layers that each stage has. */
  chunks: number;
  /** Layers of the first and of the last part; 0: as many as the others. */
  firstLayers: number;
  lastLayers: number;
  /** The embeddings, or the head, take the place of a layer. */
  countEmbedding: boolean;
  countHead: boolean;
  order: '1f1b' | 'gpipe';
}

/** When the gradients of the ranks are summed; native/fsdp/sharding.h. */
export type Reduction = 'micro_batch' | 'mini_batch';

/** Parts of an engine's state. */
export interface NativeStateKinds {
  /** Weights; of what is trained in bfloat16 the masters and the copy to compute with. */
  parameters: boolean;
  gradients: boolean;
  /** Both moments of AdamW. */
  moments: boolean;
}

/** native/fsdp/sharding.h */
export type Sharding = 'full_shard' | 'shard_grad_op' | 'no_shard';

/** A group of ranks and its meeting point (native/comm/communicator.h). */
export interface NativeGroupOptions {
  backend: 'gloo' | 'nccl';
  rank: number;
  size: number;
  /** Address of this rank that the others reach (Gloo; NCCL takes the interface of NCCL_SOCKET_IFNAME). */
  host: string;
  /** Of the meeting point, on 127.0.0.1 of the rank's own host. */
  port: number;
  /** Shared by the ranks of a group: strangers at the same meeting point do not meet them. */
  token: string;
  /** How long one collective may take. */
  timeoutMs: number;
}

export interface NativeHeldBytes {
  parameters: number;
  gradients: number;
  moments: number;
}

/** Bytes that one rank holds for good, on its device and (offloaded) on the host. */
export interface NativeStateBytes extends NativeHeldBytes {
  host: NativeHeldBytes;
}

/** An image in the size in which it is read (native/batch/images.h). */
export interface NativeImage {
  height: number;
  width: number;
  pixels: Uint8Array; // [height * width * 3]
}

/** The images of prompts: each once, and which of them each sequence has. */
export interface NativeImageBatch {
  all: NativeImage[];
  indices: Int32Array;
  offsets: Int32Array; // [B+1] into the indices
}

export interface NativeTokenBatch {
  tokens: Int32Array; // [ΣL]
  seqOffsets: Int32Array; // [B+1]
  promptLens: Int32Array; // [B]
  routedExperts: Uint8Array | null; // [ΣL * bytes] (native/batch/routed_experts.h)
  images: NativeImageBatch | null;
}

export interface NativeMiniBatches {
  offsets: number[]; // [M+1] sequence index
  globalTokens: number[]; // [M]
  globalSequences: number[]; // [M]
  epochs: number;
}

export interface NativePolicyBatch {
  tokens: NativeTokenBatch;
  responseMask: Uint8Array;
  oldLogProbs: Float32Array;
  advantages: Float32Array;
  refLogProbs: Float32Array | null;
  rolloutIsWeights: Float32Array | null;
  givenLoss: NativeGivenLoss | null;
  hasGradient: Uint8Array | null; // [B]; 0: forward alone
  teacherLogProbs: Float32Array | null; // with a distillation [ΣR], or with topK [ΣR * topK]
  teacherIds: Int32Array | null; // [ΣR * topK]
}

export interface NativeValueBatch {
  tokens: NativeTokenBatch;
  responseMask: Uint8Array;
  values: Float32Array;
  returns: Float32Array;
}

export interface NativeSftBatch {
  tokens: NativeTokenBatch;
  lossMask: Uint8Array; // [ΣR]
}

export interface NativeLogProbResult {
  logProbs: Float32Array;
  entropy: Float32Array | null;
  sumPiSquared: Float32Array | null;
  routedExperts: Uint8Array | null; // as in NativeTokenBatch
  topLogProbs: Float32Array | null; // [ΣR * topK]
  topIds: Int32Array | null;
}

export interface NativeParameterInfo {
  name: string;
  shape: number[];
  /** The weight of a linear layer, or of several. */
  matrix: boolean;
}

/** merged: for export alone, base weights with what the adapters add to them. */
export type NativeTensorKind = 'param' | 'grad' | 'expAvg' | 'expAvgSq' | 'merged';

/** Rows of a parameter as they lie in a safetensors file (native/engine/engine.h, TensorSlice). */
export interface NativeTensorSlice {
  param: string;
  row: number;
  rows: number;
  transpose: boolean;
  label: string;
  offset: number;
  dtype: 'F32' | 'F16' | 'BF16' | 'MXFP4' | 'F8_E4M3'; // the last two: read only
  scales: NativeScales | null; // with the last two
}

/** The scales of packed values (native/checkpoint/packed_format.h), one for each block of a matrix as it lies in the file. */
export interface NativeScales {
  path: string;
  offset: number;
  dtype: 'F32' | 'F16' | 'BF16' | 'F8_E8M0';
  blockRows: number;
  blockColumns: number;
}

export interface NativeTensorFile {
  path: string;
  header: Uint8Array; // empty when reading
  size: number;
  tensors: NativeTensorSlice[];
}

/** Rows of a Hugging Face tensor, which is rows of a parameter (native/engine/engine.h, WeightChunk). */
export interface NativeWeightChunk {
  param: string;
  row: number;
  rows: number;
  transpose: boolean;
  label: string;
  first: number;
  count: number;
}

export interface NativeWeightBucket {
  dtype: 'float32' | 'bfloat16';
  chunks: NativeWeightChunk[];
}

export interface NativeExportedWeights {
  bytes: Uint8Array | null; // of rank 0
  version: number;
}

export interface NativeMemoryInfo {
  /** Peak resident set of the process since start, bytes. */
  peakRss: number;
  /** Device memory allocated now / at most, bytes; 0 on CPU. */
  allocated: number;
  maxAllocated: number;
}

export interface NativeBuildInfo {
  version: string; // of the package
  libtorch: string; // version compiled against
  cuda: boolean; // built with USE_CUDA
  deviceCount: number;
  threads: number; // LibTorch's intra-op threads now
  profiler: boolean; // LibTorch has one
}

/** What a profile records beside operations and named ranges. */
export interface NativeProfileOptions {
  cuda: boolean; // kernels and copies of the GPU
  shapes: boolean; // of the inputs of operations
  memory: boolean; // what LibTorch's allocators give out and take back
}

/** The LM head on N rows of hidden states: log-probs and entropies of softmax(hidden weight^T / temperature). */
export interface NativeHeadInputs {
  hidden: Float32Array; // [N * hiddenSize]
  weight: Float32Array; // [V * hiddenSize]
  targets: Int32Array; // [N]
  hiddenSize: number;
  temperature: number;
  dtype: 'float32' | 'bfloat16';
  device: 'cpu' | 'cuda';
  numThreads: number; // 0: leave LibTorch's choice
  byLogProb: Float32Array | null; // [N] gradients of a loss by the outputs; null: forward only
  byEntropy: Float32Array | null;
}

export interface NativeHeadResult {
  logProbs: Float32Array; // [N]
  entropy: Float32Array; // [N]
  byHidden: Float32Array | null; // [N * hiddenSize]
  byWeight: Float32Array | null; // [V * hiddenSize]
  seconds: number; // of the computation, without copies from and to arrays
}
