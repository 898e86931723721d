import {
  badOption,
  checkOptionNames,
  choiceOption,
  countOption,
  flagOption,
  numberOption,
} from '../base/check_options';
import { RUN_LIMITS } from '../base/limits';
import { show } from '../base/text';
import type { SavedTokenizer } from '../checkpoint/save_files';
import type { Launcher, LauncherOptions } from '../controller/launcher';
import { checkLauncher, requireGroup } from '../controller/require_group';
import type { WorkerGroup } from '../controller/worker_group';
import type {
  NativeOptimizerOptions,
  NativeParallelOptions,
  NativePipelineOptions,
  NativeStateKinds,
  Reduction,
  Sharding,
} from '../native/bridge';
import { type LoraOptions, type ResolvedLoraOptions, resolveLoraOptions } from './lora_options';
import { type MtpOptions, type ResolvedMtp, resolveMtp } from './mtp_options';
import { type MuonOptions, resolveMuon } from './muon_options';
import { type OffloadOptions, resolveOffload } from './offload_options';
import { resolveParallel } from './parallel_options';
import { resolveSchedule, SCHEDULE_KEYS, type ScheduleOptions } from './schedule_options';

/** AdamW, or Muon beside it. The learning rate moves once per update call (one training step, whatever its mini-batches), as in verl. */
export interface OptimOptions extends ScheduleOptions {
  /** Default 1e-6 for an actor, 1e-5 for a critic. */
  lr?: number;
  betas?: [number, number]; // [0.9, 0.999]; each below 1
  eps?: number; // 1e-8
  /** Decoupled; applies to every parameter. 0.01 */
  weightDecay?: number;
  /** Global L2 norm at which gradients are clipped, 1. */
  gradClip?: number;
  /** Default: AdamW of everything. */
  muon?: MuonOptions;
}

/** What an actor or a critic is made of. */
export interface EngineOptions {
  /** Hugging Face directory: config.json and safetensors. */
  model: string;
  /**
   * Directory of the tokenizer that is saved with the model, and (if not null) the chat template in place of its own. Default: that of the
   * model directory.
   */
  savedTokenizer?: SavedTokenizer;
  /** Of the model, in place of config.json's, also for what RoPE scalings derive from it; saved with the model. */
  maxPositionEmbeddings?: number;
  strategy?: 'fsdp' | 'megatron'; // fsdp
  /** Worker processes that share the model and the work, 1; docs/distributed.md. */
  worldSize?: number;
  /**
   * Default: cuda where the native addon has it and a GPU is visible, else cpu; decided before workers start. Of a `launcher` of one's
   * own the machines are not known: its default is cpu.
   */
  device?: 'cpu' | 'cuda';
  /** Compute dtype; of what is trained there are master weights besides. Default: that of the masters where it is bfloat16, else bfloat16 on cuda, float32 on cpu. */
  dtype?: 'float32' | 'bfloat16';
  /**
   * Of the weights that are trained and of their moments, float32. bfloat16: computed with as they are, and rounded stochastically by every
   * update (docs/numerics.md): 10 bytes a weight in place of 18; with `strategy` fsdp and `dtype` bfloat16. With `lora` all that is trained is float32.
   */
  masterDtype?: 'float32' | 'bfloat16';
  /**
   * Packing capacity: tokens per micro-batch, with `parallel.ulysses` or `cp` of all workers that share one. Default 4096 on cpu, 16384
   * on cuda. A longer sequence is an error that says to raise it. Log-probs are bitwise reproducible at one capacity.
   */
  maxTokensPerMicroBatch?: number;
  parallel?: {
    /**
     * Neighbouring workers that each hold a part of every matrix and compute the same micro-batches together (tensor parallelism), 1:
     * a divisor of worldSize and of the model's attention heads; it divides the key heads or is a multiple of them. They generate
     * together, too.
     */
    tp?: number;
    /** Of tensor-parallel workers each computes what lies between the matrices for its own part of the rows; default false. */
    sequenceParallel?: boolean;
    /**
     * Neighbouring workers of data parallelism that each hold a part of the experts of a mixture (expert parallelism), 1: a divisor of
     * them and of the experts. They train on data of their own and generate together.
     */
    ep?: number;
    /**
     * Stages of a pipeline, 1: workers that each hold a range of layers, worldSize / pp apart; a divisor of worldSize. What is left of
     * worldSize shares the data.
     */
    pp?: number;
    /** Ranges of layers that each stage has (interleaved schedule), 1. */
    vpp?: number;
    /** Layers of the first and of the last range; default: as many as the others. */
    firstStageLayers?: number;
    lastStageLayers?: number;
    /** The embeddings, or the head, count as a layer when the layers are shared evenly; default false. */
    countEmbedding?: boolean;
    countHead?: boolean;
    /** Order of an update's forwards and backwards in a pipeline: 1f1b (default) keeps few micro-batches in flight, gpipe all. */
    schedule?: '1f1b' | 'gpipe';
    /**
     * Neighbouring workers that compute the same micro-batches together, each part of every sequence's tokens (Ulysses sequence
     * parallelism), 1: a divisor of worldSize and of the model's attention heads. Generation is not shared.
     */
    ulysses?: number;
    /**
     * Neighbouring workers (tensor-parallel groups of them) that each have some of every sequence's tokens, and the keys and values of all
     * (context parallelism), 1: a divisor of worldSize / tp / pp. Generation is not shared. Not beside ulysses.
     */
    cp?: number;
    /**
     * Ranks that share one copy of the state: -1 (default), worldSize or more: all; 1: none, `sharding` no_shard; a divisor of
     * worldSize: neighbours share one, and there are several copies (hybrid).
     */
    fsdpSize?: number;
    /**
     * full_shard (default): parameters are gathered block by block; shard_grad_op: once per call or optimiser step; no_shard: every
     * rank holds everything. With strategy megatron the default is shard_grad_op. The first two shard master weights, gradients and optimiser state.
     */
    sharding?: Sharding;
    /** Gather the next block while one is at work, forward and backward; default false. Takes the memory of one more block. */
    prefetch?: boolean;
    /**
     * When the ranks that share a copy sum their gradients: micro_batch (default): in each micro-batch, one block at a time (on a GPU while another is computed);
     * mini_batch: once per optimiser step, so fewer bytes are sent, but whole float32 gradients of all parameters are kept.
     */
    reduce?: Reduction;
    /**
     * What sharded gradients are rounded to on their way to the worker that sums them, in float32: float32 (default), or bfloat16 for half of
     * the bytes.
     */
    reduceDtype?: 'float32' | 'bfloat16';
  };
  /** Recompute a block's activations in the backward pass instead of keeping them; default false. */
  gradientCheckpointing?: boolean;
  /**
   * What is kept of the blocks that gradientCheckpointing recomputes, their inputs, waits in pinned memory of the host from a block's forward to
   * its backward; default false. docs/distributed.md.
   */
  activationOffload?: boolean;
  /**
   * With the tower for images, of a model whose language model is a model of its own (Qwen3.5); default false: that alone. Others that
   * read images are always read whole.
   */
  readsImages?: boolean;
  /** Of a model that reads images: its tower stays as it was loaded, and is given neither gradients nor optimiser state; default false. */
  freezeVisionTower?: boolean;
  /** Train the layers that predict further tokens (multi-token prediction), too; default: they stay as they are. docs/models.md. */
  mtp?: MtpOptions;
  /** What begins on the host; default: nothing. */
  offload?: OffloadOptions;
  /** null: inference only, no memory for gradients, optimiser and float32 masters: weights are held in `dtype` alone, rounded once when they come. */
  optim?: OptimOptions | null;
  /** Train low-rank adapters instead of the model's weights; docs/lora.md. */
  lora?: LoraOptions;
  /** Initial values of parameters that the model directory does not hold (a fresh value head, adapters); default 0. */
  seed?: number;
  /** LibTorch's intra-op threads per worker; default: LibTorch's choice. */
  numThreads?: number;
  /** Peak of one device in TFLOP/s at the compute dtype: with it, updates report perf/mfu/*. */
  peakTflops?: number;
  /** How workers are started; default: local processes. */
  launcher?: LauncherOptions | Launcher;
  /** Workers to share with other roles. They are used, not closed, by this one; `worldSize`, `device` and `launcher` are theirs. */
  group?: WorkerGroup;
  /** Name of the engine in the workers, unique in a group. Default: 'actor' or 'critic'. */
  name?: string;
}

export interface ResolvedEngineOptions {
  model: string;
  savedTokenizer: SavedTokenizer | null;
  maxPositionEmbeddings: number | null;
  name: string;
  worldSize: number;
  /** null: one process holds everything. */
  sharding: Sharding | null;
  /** Ranks per copy of the state; 0: all. */
  shardSize: number;
  /** Ranks per micro-batch. */
  ulysses: number;
  parallel: NativeParallelOptions;
  pipeline: NativePipelineOptions;
  prefetch: boolean;
  reduction: Reduction;
  reduceDtype: 'float32' | 'bfloat16';
  offload: NativeStateKinds;
  device: 'cpu' | 'cuda' | null;
  dtype: 'float32' | 'bfloat16' | null;
  masterDtype: 'float32' | 'bfloat16';
  maxTokens: number | null;
  gradientCheckpointing: boolean;
  activationOffload: boolean;
  readsImages: boolean;
  freezeVisionTower: boolean;
  optim: NativeOptimizerOptions | null;
  lora: ResolvedLoraOptions | null;
  /** null: layers that predict further tokens are no part of the model. */
  mtp: ResolvedMtp | null;
  seed: number;
  numThreads: number;
  peakTflops: number | null;
}

const KEYS = [
  'model',
  'savedTokenizer',
  'maxPositionEmbeddings',
  'strategy',
  'worldSize',
  'device',
  'dtype',
  'masterDtype',
  'maxTokensPerMicroBatch',
  'parallel',
].concat([
  'gradientCheckpointing',
  'activationOffload',
  'readsImages',
  'freezeVisionTower',
  'offload',
  'optim',
  'lora',
  'mtp',
  'seed',
  'numThreads',
  'peakTflops',
  'launcher',
  'group',
  'name',
]);
const OPTIM_KEYS = ['lr', 'betas', 'eps', 'weightDecay', 'gradClip', ...SCHEDULE_KEYS, 'muon'];

/** null: not given. */
const dtypeOption = (
  where: string,
  name: string,
  value: 'float32' | 'bfloat16' | undefined,
): 'float32' | 'bfloat16' | null =>
  value === undefined ? null : choiceOption(where, name, value, ['float32', 'bfloat16'], 'float32');

function resolveRecomputation(
  where: string,
  o: EngineOptions,
): Pick<ResolvedEngineOptions, 'gradientCheckpointing' | 'activationOffload'> {
  const gradientCheckpointing = flagOption(where, 'gradientCheckpointing', o.gradientCheckpointing, false);
  const activationOffload = flagOption(where, 'activationOffload', o.activationOffload, false);
  if (activationOffload && !gradientCheckpointing)
    throw badOption(
      where,
      'activationOffload: what waits on the host are the inputs of blocks that are recomputed: expected gradientCheckpointing true beside it',
    );
  return { gradientCheckpointing, activationOffload };
}

/** Applies the defaults that need no worker and refuses what this release cannot do. */
export function resolveEngineOptions(
  o: EngineOptions,
  role: string,
  defaultLr: number,
): ResolvedEngineOptions {
  const where = `${role} options`;
  checkOptionNames(where, o, KEYS);
  if (typeof o.model !== 'string' || o.model === '')
    throw badOption(where, `model: expected a directory but got ${show(o.model)}`);
  if (o.group !== undefined) requireGroup(where, o.group);
  checkLauncher(where, o.launcher);
  if (o.name !== undefined && (typeof o.name !== 'string' || o.name === ''))
    throw badOption(where, `name: expected a name but got ${show(o.name)}`);
  const strategy = choiceOption(where, 'strategy', o.strategy, ['fsdp', 'megatron'], 'fsdp');
  const asked = countOption(where, 'worldSize', o.worldSize, RUN_LIMITS.ranks, 1);
  const worldSize = o.group?.worldSize ?? asked;
  const sharding = resolveParallel(where, o.parallel === undefined ? {} : o.parallel, worldSize, strategy);
  const masterDtype = dtypeOption(where, 'masterDtype', o.masterDtype) ?? 'float32';
  const dtype = dtypeOption(where, 'dtype', o.dtype);
  if (masterDtype === 'bfloat16' && (strategy === 'megatron' || dtype === 'float32'))
    throw badOption(
      where,
      `masterDtype: expected strategy fsdp and dtype bfloat16 beside bfloat16, got ${strategy} and ${dtype ?? 'bfloat16'}`,
    );
  return {
    model: o.model,
    savedTokenizer: o.savedTokenizer === undefined ? null : resolveTokenizer(where, o.savedTokenizer),
    maxPositionEmbeddings:
      o.maxPositionEmbeddings === undefined
        ? null
        : countOption(where, 'maxPositionEmbeddings', o.maxPositionEmbeddings, RUN_LIMITS.tokens),
    name: o.name ?? role,
    worldSize,
    ...sharding,
    offload: resolveOffload(`${where}.offload`, o.offload ?? {}, false),
    device:
      o.device === undefined
        ? null
        : choiceOption<'cpu' | 'cuda'>(where, 'device', o.device, ['cpu', 'cuda'], 'cpu'),
    dtype: masterDtype === 'bfloat16' ? masterDtype : dtype,
    masterDtype,
    maxTokens:
      o.maxTokensPerMicroBatch === undefined
        ? null
        : countOption(where, 'maxTokensPerMicroBatch', o.maxTokensPerMicroBatch, RUN_LIMITS.batchTokens),
    ...resolveRecomputation(where, o),
    readsImages: flagOption(where, 'readsImages', o.readsImages, false),
    freezeVisionTower: flagOption(where, 'freezeVisionTower', o.freezeVisionTower, false),
    optim:
      o.optim === null
        ? null
        : resolveOptim(
            `${where}.optim`,
            o.optim ?? {},
            defaultLr,
            o.lora === undefined ? masterDtype : 'float32', // of adapters
          ),
    lora: o.lora === undefined ? null : resolveLoraOptions(`${where}.lora`, o.lora),
    mtp: resolveMtp(where, role, o),
    seed: numberOption(where, 'seed', o.seed, 0, { integer: true, min: 0 }),
    numThreads:
      o.numThreads === undefined ? 0 : countOption(where, 'numThreads', o.numThreads, RUN_LIMITS.threads),
    peakTflops:
      o.peakTflops === undefined ? null : numberOption(where, 'peakTflops', o.peakTflops, 0, { above: 0 }),
  };
}

function resolveTokenizer(where: string, o: SavedTokenizer): SavedTokenizer {
  const at = `${where}.savedTokenizer`;
  checkOptionNames(at, o, ['directory', 'chatTemplate']);
  const { directory, chatTemplate = null } = o;
  if (typeof directory !== 'string' || directory === '')
    throw badOption(at, `directory: expected a directory with tokenizer.json but got ${show(directory)}`);
  if (chatTemplate !== null && typeof chatTemplate !== 'string')
    throw badOption(at, `chatTemplate: expected a Jinja template or null but got ${show(chatTemplate)}`);
  return { directory, chatTemplate };
}

function resolveOptim(
  where: string,
  o: OptimOptions,
  defaultLr: number,
  masterDtype: 'float32' | 'bfloat16',
): NativeOptimizerOptions {
  checkOptionNames(where, o, OPTIM_KEYS);
  const beta = (i: 0 | 1, d: number): number => {
    const value = o.betas === undefined ? d : numberOption(where, `betas[${i}]`, o.betas[i], d, { min: 0 });
    // An average that nothing new goes into is corrected by a division by 0.
    if (value >= 1) throw badOption(where, `betas[${i}]: expected a number below 1, got ${value}`);
    return value;
  };
  if (o.betas !== undefined && !(Array.isArray(o.betas) && o.betas.length === 2))
    throw badOption(where, `betas: expected two numbers from 0 and below 1 but got ${show(o.betas)}`);
  return {
    lr: numberOption(where, 'lr', o.lr, defaultLr, { min: 0, max: RUN_LIMITS.learningRate }),
    beta1: beta(0, 0.9),
    beta2: beta(1, 0.999),
    eps: numberOption(where, 'eps', o.eps, 1e-8, { min: 0 }),
    weightDecay: numberOption(where, 'weightDecay', o.weightDecay, 0.01, { min: 0 }),
    gradClip: numberOption(where, 'gradClip', o.gradClip, 1, { above: 0 }),
    schedule: resolveSchedule(where, o),
    muon: resolveMuon(where, o.muon, masterDtype),
  };
}
