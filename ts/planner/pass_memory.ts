// The instants of a verb at which memory may peak: what is alive then, from native/model/transformer.cc, engine/rank_engine*.cc and
// rollout/step_runner.cc.
import { tensorMapping } from '../model/tensor_names';
import type { NativeModelConfig } from '../native/bridge';
import { LayerMemory, type Machine, type MicroBatchShape, ROW_TILE } from './decoder_memory';
import { headBackward, headForward } from './head_memory';
import { roundUp } from './parameter_groups';

/**
 * What is whole at an instant where parameters are sharded (shard_memory.ts). Embeddings and head are whole for a pass, blocks
 * one at a time; in training their gradients, too.
 */
export type Gathering =
  | 'nothing'
  | 'gathering a root'
  | 'inference block'
  | 'inference head'
  | 'training forward'
  | 'training backward'
  | 'reducing a block'
  | 'reducing a root'
  | 'all parameters'
  | 'optimizer step';

/** Bytes beside parameters, gradients and optimiser state. */
export interface Instant {
  name: string;
  activations: number;
  head: number;
  kvCache: number;
  gathering: Gathering;
}

const FLOAT = 4;
const INT64 = 8;

const layersOf = (config: NativeModelConfig, shape: MicroBatchShape, machine: Machine): LayerMemory[] =>
  Array.from({ length: config.numLayers }, (_, i) => new LayerMemory(config, i, shape, machine));

const largest = (layers: readonly LayerMemory[], of: (layer: LayerMemory) => number): number =>
  layers.reduce((most, layer) => Math.max(most, of(layer)), 0);

/** PackedTokens and RowContext: tokens, positions, predicting rows, targets, indices; rotary tables. */
function indices(
  config: NativeModelConfig,
  { rows, predictions, longest, ulysses }: MicroBatchShape,
): number {
  let positions = 2048; // kFirstRotaryPositions
  while (positions < longest) positions *= 2;
  const rotary = config.positions === 'rope' ? positions * config.headDim * FLOAT : 0;
  // Those of the whole micro-batch are made before they are cut.
  return ulysses * (rows * 8 + predictions * (2 * INT64 + FLOAT)) + rotary;
}

/** compute_log_prob (with entropy) or compute_values. */
export function inferenceInstants(
  config: NativeModelConfig,
  shape: MicroBatchShape,
  machine: Machine,
): Instant[] {
  const layers = layersOf(config, shape, machine);
  const fixed = indices(config, shape);
  const hidden = shape.predictions * config.hiddenSize * machine.elementBytes;
  const input = (layers[0] as LayerMemory).input;
  const forward = Math.max(input + largest(layers, (layer) => layer.forward(false)), input + 2 * hidden);
  const outputs = config.head === 'lm' ? 3 : 1;
  return [
    { name: 'gather', activations: fixed + input, head: 0, kvCache: 0, gathering: 'gathering a root' },
    { name: 'forward', activations: fixed + forward, head: 0, kvCache: 0, gathering: 'inference block' },
    {
      name: 'head',
      activations: fixed + hidden,
      head: headForward(config, shape.predictions, machine, outputs),
      kvCache: 0,
      gathering: 'inference head',
    },
  ];
}

/** update_policy, update_critic or update_sft. */
export function trainingInstants(
  config: NativeModelConfig,
  shape: MicroBatchShape,
  machine: Machine,
  checkpointing: boolean,
): Instant[] {
  const layers = layersOf(config, shape, machine);
  const input = (layers[0] as LayerMemory).input;
  const kept = layers.reduce((sum, layer) => sum + layer.input + (checkpointing ? 0 : layer.saved), 0);
  const one = largest(layers, (layer) => layer.saved);
  const fixed = indices(config, shape);
  const hidden = shape.predictions * config.hiddenSize * machine.elementBytes;
  const head = headBackward(config, shape.predictions, machine);
  const forward = largest(layers, (layer) => layer.forward(!checkpointing));
  const backward = largest(layers, (layer) =>
    checkpointing ? layer.saved + Math.max(input + layer.forward(true), layer.backward()) : layer.backward(),
  );
  const atHead = fixed + kept + 3 * hidden; // predict_inputs, hidden, d_hidden
  const atBackward = fixed + 4 * hidden; // and d_inputs
  const embedding = input + (machine.elementBytes === FLOAT ? 0 : 2 * input); // dx, in float32
  const instant = (name: string, activations: number, gathering: Gathering): Instant => ({
    name,
    activations,
    head: 0,
    kvCache: 0,
    gathering,
  });
  return [
    instant('forward', fixed + kept + forward, 'training forward'),
    { ...instant('head', atHead, 'training forward'), head },
    instant('backward', atBackward + kept + backward, 'training backward'),
    // The last block's input has become its gradient.
    instant('reduce block', atBackward + kept - (checkpointing ? 0 : one), 'reducing a block'),
    instant('reduce root', atBackward + embedding, 'reducing a root'),
    instant('optimizer', 0, 'optimizer step'),
  ];
}

/**
 * importTensors on a CPU: of the largest tensor what this rank owns (`owned`: elements of a parameter's group that are held
 * here), in float32, and the temporaries of its check for NaN (checkpoint/tensor_file.cc). A worker keeps what it frees, so
 * this counts against what comes later, too. A GPU never sees them.
 */
export function loadingInstant(
  config: NativeModelConfig,
  machine: Machine,
  owned: (param: string) => number,
): Instant {
  const elements = tensorMapping(config).map(({ param, shape, transpose }) => {
    const all = shape.reduce((n, extent) => n * extent, 1);
    if (transpose) return all; // its rows lie all over the file
    // Whole rows, two of which may be cut.
    return Math.min(all, owned(param) + 2 * (all / (shape[0] as number)));
  });
  const activations = machine.device === 'cpu' ? Math.max(...elements) * (FLOAT + 7) : 0;
  return { name: 'load', activations, head: 0, kvCache: 0, gathering: 'nothing' };
}

/** Of the rollout, on one rank. */
export interface RolloutShape {
  verb: 'generate' | 'validate';
  prompts: number;
  /** Samples per prompt. */
  n: number;
  promptLength: number;
  responseLength: number;
  /** Sequences that run at the same time, and positions of a step. */
  maxSequences: number;
  maxStepTokens: number;
  /** Of keys and values; null: not known. */
  kvCacheBytes: number | null;
}

// RolloutOptions of rollout/request.h and kPagePositions of kernels/paged_attention.h
const LOGITS_BYTES = 64 * 2 ** 20;
const PAGE_POSITIONS = 32;
const DECODE_TILE = 32;

/** Pages of keys and values that a generation ends up with, in bytes. */
export function kvCacheBytes(config: NativeModelConfig, rollout: RolloutShape, machine: Machine): number {
  const page =
    config.numLayers * config.numKvHeads * 2 * config.headDim * PAGE_POSITIONS * machine.elementBytes;
  const pages = (positions: number): number => Math.ceil(Math.max(0, positions) / PAGE_POSITIONS);
  // Full pages of a prompt are shared by its samples. The last sampled token never goes through the decoder.
  const shared = Math.floor(rollout.promptLength / PAGE_POSITIONS);
  const longest = pages(rollout.promptLength + rollout.responseLength - 1);
  const running = Math.min(rollout.maxSequences, rollout.prompts * rollout.n);
  const wanted = Math.ceil(running / rollout.n) * shared + running * (longest - shared);
  const budget = rollout.kvCacheBytes === null ? wanted : Math.floor(rollout.kvCacheBytes / page);
  return Math.min(wanted, budget) * page;
}

/**
 * The second copy of all weights that are multiplied, which a generation holds on a processor with AVX-512 (bfloat16: and its
 * extension for that): counted for every CPU, because a plan may be made on another machine. Transformer::begin_decoding in
 * native/model.
 */
function packedWeights(config: NativeModelConfig, machine: Machine): number {
  if (machine.device !== 'cpu' || config.moeLayers.some(Boolean)) return 0;
  const { hiddenSize: hidden, intermediateSize, headDim, numHeads, numKvHeads } = config;
  const attention = hidden * headDim * (2 * numHeads + 2 * numKvHeads);
  const mlp = hidden * intermediateSize * (config.gatedMlp ? 3 : 2);
  return machine.elementBytes * (config.numLayers * (attention + mlp) + config.vocabSize * hidden);
}

/** generate */
export function generationInstants(
  config: NativeModelConfig,
  rollout: RolloutShape,
  machine: Machine,
): Instant[] {
  const { hiddenSize: hidden, vocabSize: vocab } = config;
  const e = machine.elementBytes;
  const kvCache = kvCacheBytes(config, rollout, machine);
  const samples = rollout.prompts * rollout.n;
  const prompts = Math.min(rollout.prompts * rollout.promptLength, rollout.maxStepTokens);
  const running = roundUp(Math.min(rollout.maxSequences, samples), DECODE_TILE);
  const rows = roundUp(Math.max(running, prompts), DECODE_TILE);
  const q = config.numHeads * config.headDim;
  const qkv = q + 2 * config.numKvHeads * config.headDim;
  const steps = rows * (hidden + qkv + q) * e;
  const affordable = Math.floor(LOGITS_BYTES / (vocab * FLOAT) / DECODE_TILE) * DECODE_TILE;
  const logits = Math.min(running, Math.max(DECODE_TILE, affordable)) * vocab * FLOAT;
  const packed = packedWeights(config, machine);
  // Where nothing is packed the head's weight becomes float32: the larger of both.
  const floatWeight = e === FLOAT ? 0 : Math.max(0, vocab * hidden * FLOAT - packed);

  // What a tile of rows needs in a block, on every thread.
  const inner = config.intermediateSize * (config.gatedMlp ? 3 : 2);
  const tiles = machine.device === 'cpu' ? Math.min(rows, ROW_TILE * machine.threads) : rows;
  const block = tiles * (inner + 3 * hidden) * e;
  return [
    {
      name: 'prefill',
      activations: steps + packed + block,
      head: logits,
      kvCache,
      gathering: 'all parameters',
    },
    {
      name: 'decode',
      activations: steps + packed,
      head: logits + floatWeight,
      kvCache,
      gathering: 'all parameters',
    },
  ];
}
