import type { StoredTensor } from '../checkpoint/safetensors';
import type { PoolName } from '../config/derived/pools';
import type { Lora } from '../model/adapter_sites';
import type {
  NativeHeldBytes,
  NativeModelConfig,
  NativeMuonOptions,
  NativeParallelOptions,
  NativePhasePeak,
  NativePipelineOptions,
  NativeRoutingLoad,
  NativeSimulatedMemory,
} from '../native/bridge';
import type { RoleName } from '../roles/role_settings';
import type { EngineMemory } from './engine_memory';
import { engineOptions, memoryWorks } from './engine_request';
import type { Placement, ShardingStrategy } from './placement';
import { firstRankOf, type Place, placesThatDiffer } from './places';
import type { ImageLimits } from './prompt_images';
import { batchBytes } from './worker_batch';

/** Bytes that a role holds for good on one rank. */
export interface StateBytes {
  /** Weights: masters of what is trained, and all in the compute dtype where that is another. */
  parameters: number;
  gradients: number;
  /** Moments of AdamW, momentum of Muon. */
  optimizer: number;
}

/** Generation on one rank. */
export interface RolloutShape {
  verb: 'generate' | 'validate';
  prompts: number;
  /** They are as many on each rank, however many ranks there are. */
  fixed?: true;
  /** Samples per prompt. */
  n: number;
  /** Tokens of a prompt and its response, at most. */
  longest: number;
  /** The most tokens of each, which need not go together. */
  promptLength: number;
  responseLength: number;
  /** Sequences that run at the same time, and positions of a step. */
  maxSequences: number;
  maxStepTokens: number;
  kvCacheBytes: number;
  /** Ranks that decode together where each trains with whole matrices; 1: none. */
  tensorParallel: number;
  /** Weights of 8 bits; null: of the compute dtype. */
  quantization: 'int8' | 'fp8' | null;
  /** Latents in the place of keys and values. */
  latentCache: boolean;
  /** Drafts come from the model's own layer for further tokens, which then has keys and values, too. */
  predicts: boolean;
}

/** Sequences that one rank (one group of ranks, where several share sequences or the model) runs in one verb (or mini-batch). */
export interface Load {
  sequences: number;
  /** Tokens of the longest, prompt and response. */
  longest: number;
  /** Response tokens of the longest. */
  response: number;
  /** Tokens of a prompt, at most. Default: what is no response in the longest. */
  prompt?: number;
  /** Sequences with one prompt. Default 1. */
  samples?: number;
  /** Sequences that the rank is sent with them in one call, as several mini-batches. Default: no others. */
  sent?: number;
}

/** How ranks share the matrices, experts and layers of a model. */
export interface RoleLayout {
  parallel: NativeParallelOptions;
  pipeline: NativePipelineOptions;
}

/** One engine in every worker. */
export interface RoleSpec {
  name: RoleName;
  model: NativeModelConfig;
  /** What is read of its files, by Hugging Face name; what is not there, and without it all, is bfloat16. */
  stored?: ReadonlyMap<string, StoredTensor>;
  /** Names of what else they have: scales of activations, and of keys and values in a cache. Default: none. */
  unusedScales?: readonly string[];
  /** Adapters; none: every parameter is trained. */
  lora?: Pick<Lora, 'mapping' | 'native'>;
  /** Of a model that reads images. */
  images?: ImageLimits;
  /** Of a distillation: tokens of a teacher in the place of each response token. The teacher finds them, the actor learns from them. Default 0. */
  teacherTokens?: number;
  /** Of a mixture: which losses of its routers an update has. Default: none. */
  routerLosses?: { balance: boolean; z: boolean };
  /** Of a mixture: where the experts of its tokens are recorded, and where they are given. Default 'none'. */
  routing?: NativeRoutingLoad;
  dtype: 'float32' | 'bfloat16';
  /** Of what is trained and of its moments. */
  masterDtype: 'float32' | 'bfloat16';
  /** Of what learns by Muon; none: AdamW. */
  muon?: NativeMuonOptions;
  strategy: ShardingStrategy;
  /** Ranks of data parallelism that share one copy of the state; null: all. */
  shardSize: number | null;
  layout: RoleLayout;
  /** Ranks that share a micro-batch. */
  ulysses: number;
  placement: Placement;
  /** Packing capacity of one rank: a micro-batch has as many for each rank that has a part of its rows. */
  capacity: number;
  /** Tokens of `capacity` that its key does not count. Default 0. */
  uncounted?: number;
  gradientCheckpointing: boolean;
  /** What is kept with it waits on the host. */
  activationOffload: boolean;
  /** compute_log_prob or compute_values; null: not called. */
  inference: Load | null;
  /** One mini-batch of an update; null: an inference-only engine. */
  update: Load | null;
  /** Generations: in training, in validation. */
  rollouts: readonly RolloutShape[];
  /** Keys of the configuration that change this role, for advice. */
  keys: {
    capacity: string;
    dtype: string;
    /** With the value that turns it on. */
    gradientCheckpointing: string | null;
    /** The same; null: it does not learn. */
    activationOffload: string | null;
    /** Section of the keys of the layout. */
    layout: string;
    sharding: string;
    /** Section of param_offload and what is beside it; null: there is none. */
    placement: string | null;
    /** null: its gradients are summed in one way. */
    reduction: string | null;
  };
}

/** What is planned: the workers of one pool. */
export interface PlanSpec {
  /** Given where the run has several pools: which one this is, and the ranks of the others. */
  pool?: { name: PoolName; otherRanks: number };
  device: 'cpu' | 'cuda';
  worldSize: number;
  /** Compute threads per worker on a CPU. */
  threads: number;
  /** Bytes of one rank: of its GPU, or of the process on a CPU; null: not known. */
  memory: number | null;
  roles: readonly RoleSpec[];
}

export interface MemoryParts {
  parameters: number;
  gradients: number;
  optimizer: number;
  /** Whole parameters and gradients that exist while a shard is at work, and buffers of collectives. */
  gathered: number;
  activations: number;
  head: number;
  kvCache: number;
  /** Of what it is sent or sends: pixels of images, tokens of a teacher. On a GPU they lie on the host. */
  batch: number;
  /** The worker process, or the context on a GPU. */
  process: number;
}

/** One verb of one role when it holds most. */
export interface Phase {
  role: RoleName;
  verb: string;
  /** What the allocation was for that made it so much. */
  instant: string;
  memory: MemoryParts;
  total: number;
}

/** On the device; on the host beside it. */
export interface RoleState extends StateBytes {
  role: RoleName;
  host: StateBytes;
  /** Number of parameters of the whole model. */
  count: number;
}

/** Of one rank, and of those that hold no more because they do the same. */
export interface RankPlan extends Place {
  roles: RoleState[];
  phases: Phase[];
  peak: Phase;
}

/** Of the rank that holds most at any time. */
export interface Plan extends RankPlan {
  /** All ranks that differ in what they do, this one among them, by rank. */
  ranks: (Place & { peak: Phase })[];
  memory: number | null;
  /** null: `memory` is not known. */
  fits: boolean | null;
}

/**
 * Bytes of a worker before it holds a model: Node and LibTorch on a CPU (measured), context and library workspaces on a GPU (an
 * estimate).
 */
const PROCESS_BYTES: Readonly<Record<'cpu' | 'cuda', number>> = {
  cpu: 256 * 2 ** 20,
  cuda: 2 ** 30,
};

const INFERENCE_VERB: Readonly<Record<RoleName, string>> = {
  actor: 'compute_log_prob',
  reference: 'compute_log_prob',
  rollout: 'compute_log_prob',
  critic: 'compute_values',
  'reward model': 'score',
  teacher: 'compute_log_prob',
};

const INSTANTS: Readonly<Record<NativePhasePeak['last'], string>> = {
  state: 'state',
  gathered: 'gathering',
  activations: 'activations',
  head: 'head',
  kvCache: 'KV cache',
};

/**
 * Bytes per rank of everything that shares it, and whether they fit: what the engine of each role allocates in its verbs, beside what
 * those of the others hold.
 * @throws TroupeError of the engine, for what it would refuse; NATIVE_UNAVAILABLE
 */
export async function planMemory(spec: PlanSpec, engines: EngineMemory): Promise<Plan> {
  const { memory } = spec;
  const plans = await Promise.all(placesThatDiffer(spec).map((place) => planRank(spec, place, engines)));
  const most = plans.reduce((one, other) => (other.peak.total > one.peak.total ? other : one));
  return {
    ...most,
    ranks: plans.map(({ rank, stages, peak }) => ({ rank, stages, peak })),
    memory,
    fits: memory === null ? null : most.peak.total <= memory,
  };
}

async function planRank(spec: PlanSpec, place: Place, engines: EngineMemory): Promise<RankPlan> {
  const { device, worldSize } = spec;
  const gpu = device === 'cuda';
  const found = await Promise.all(
    spec.roles.map(async (role, i) => {
      const rank = firstRankOf(role, place.stages[i] as number, worldSize);
      const options = engineOptions(role, spec);
      const [first, ...others] = await Promise.all(
        memoryWorks(role).map((work) => engines.ask({ options, rank, worldSize, work, gpu })),
      );
      const { state, parameters, phases: found } = first as NativeSimulatedMemory;
      const phases = found.map((phase) =>
        others
          .flatMap((other) => other.phases.filter(({ verb }) => verb === phase.verb))
          .reduce((most, one) => (one.bytes > most.bytes ? one : most), phase),
      );
      return { role, phases, count: parameters, held: stateBytes(state), host: stateBytes(state.host) };
    }),
  );
  // On a CPU what is offloaded lies in the same memory.
  const resident = found.flatMap(({ held, host }) => (gpu ? [held] : [held, host])).reduce(added, NOTHING);
  const phases = found.flatMap(({ role, held, host, phases: peaks }) => {
    const own = gpu ? total(held) : total(held) + total(host);
    return peaks
      .filter(({ verb }) => verb !== 'create' && (verb !== 'save' || role.update !== null)) // `create` is less than any other
      .map((peak): Phase => {
        const parts: MemoryParts = {
          ...resident,
          gathered: peak.gathered,
          // What an engine holds beside its state: tables of positions, what blocks are rounded up by.
          activations: peak.activations + Math.max(0, peak.state - own),
          head: peak.head,
          kvCache: peak.kvCache,
          batch: gpu ? 0 : batchBytes(role, peak.verb),
          process: PROCESS_BYTES[device],
        };
        const all = Object.values(parts).reduce((sum: number, bytes: number) => sum + bytes, 0);
        return {
          role: role.name,
          verb: verbOf(role, peak.verb),
          instant: INSTANTS[peak.last],
          memory: parts,
          total: all,
        };
      });
  });
  return {
    ...place,
    roles: found.map(({ role, count, held, host }) => ({ role: role.name, count, ...held, host })),
    phases,
    peak: largestPhase(phases),
  };
}

const NOTHING: StateBytes = { parameters: 0, gradients: 0, optimizer: 0 };

const stateBytes = ({ parameters, gradients, moments }: NativeHeldBytes): StateBytes => ({
  parameters,
  gradients,
  optimizer: moments,
});

const total = ({ parameters, gradients, optimizer }: StateBytes): number =>
  parameters + gradients + optimizer;

const added = (a: StateBytes, b: StateBytes): StateBytes => ({
  parameters: a.parameters + b.parameters,
  gradients: a.gradients + b.gradients,
  optimizer: a.optimizer + b.optimizer,
});

const verbOf = ({ name }: RoleSpec, verb: string): string =>
  verb === 'inference' ? INFERENCE_VERB[name] : verb;

const largestPhase = (phases: readonly Phase[]): Phase =>
  phases.reduce((most, phase) => (phase.total > most.total ? phase : most));
