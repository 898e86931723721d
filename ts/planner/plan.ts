import type { Lora } from '../model/adapter_sites';
import type { NativeModelConfig } from '../native/bridge';
import type { RoleName } from '../roles/role_settings';
import { type Machine, type MicroBatchShape, ROW_TILE } from './decoder_memory';
import { roundUp } from './parameter_groups';
import {
  generationInstants,
  type Instant,
  inferenceInstants,
  loadingInstant,
  type RolloutShape,
  trainingInstants,
} from './pass_memory';
import { type Placement, type ShardingStrategy, ShardMemory, type StateBytes } from './shard_memory';

/** Sequences that one rank (with Ulysses: one group of ranks) runs in one verb (or mini-batch). */
export interface Load {
  sequences: number;
  /** Tokens of the longest, prompt and response. */
  longest: number;
  /** Response tokens of the longest. */
  response: number;
}

/** One engine in every worker. */
export interface RoleSpec {
  name: RoleName;
  model: NativeModelConfig;
  /** Adapters; none: every parameter is trained. */
  lora?: Pick<Lora, 'mapping' | 'native'>;
  dtype: 'float32' | 'bfloat16';
  strategy: ShardingStrategy;
  /** Ranks that share one copy of the state; null: all. */
  shardSize: number | null;
  /** Ranks that share a micro-batch. */
  ulysses: number;
  placement: Placement;
  /** Packing capacity of one rank: a micro-batch has `ulysses` times as many tokens. */
  capacity: number;
  /** Tokens of `capacity` that its key does not count. Default 0. */
  uncounted?: number;
  gradientCheckpointing: boolean;
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
    gradientCheckpointing: string | null;
    sharding: string;
    /** Section of param_offload and what is beside it. */
    placement: string;
  };
}

/** What is planned: the workers of one pool. */
export interface PlanSpec {
  /** Given where the run has several pools: which one this is, and the ranks of the others. */
  pool?: { name: 'policy' | 'reward'; otherRanks: number };
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
  /** On a CPU: holes between live blocks, which a worker keeps (HEAP_HOLES). */
  holes: number;
  /** The worker process, or the context on a GPU. */
  process: number;
}

/** One verb of one role at the instant at which it takes most. */
export interface Phase {
  role: RoleName;
  verb: string;
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

export interface Plan {
  roles: RoleState[];
  phases: Phase[];
  peak: Phase;
  memory: number | null;
  /** null: `memory` is not known. */
  fits: boolean | null;
}

/**
 * Bytes of a worker before it holds a model: Node and LibTorch on a CPU (measured), context and library workspaces on a GPU (an
 * estimate).
 */
export const PROCESS_BYTES: Readonly<Record<'cpu' | 'cuda', number>> = {
  cpu: 256 * 2 ** 20,
  cuda: 2 ** 30,
};

/**
 * Share of activations and head that the heap of a worker on a CPU grows by beside them: it keeps what it frees, and not every
 * block finds a hole of its size. Measured: docs/planning.md.
 */
const HEAP_HOLES = 0.25;

const INFERENCE_VERB: Readonly<Record<RoleName, string>> = {
  actor: 'compute_log_prob',
  reference: 'compute_log_prob',
  critic: 'compute_values',
  'reward model': 'score',
};

/** Bytes per rank of everything that shares it, and whether they fit. A pure function of the shapes. */
export function planMemory(spec: PlanSpec): Plan {
  const roles = spec.roles.map((role) => new RoleMemory(role, spec));
  const process = PROCESS_BYTES[spec.device];
  const held = roles.flatMap(({ shards: { state, host } }) =>
    // On a CPU what is offloaded lies in the same memory.
    spec.device === 'cpu' ? [state, host] : [state],
  );
  const resident = held.reduce((sum, bytes) => ({
    parameters: sum.parameters + bytes.parameters,
    gradients: sum.gradients + bytes.gradients,
    optimizer: sum.optimizer + bytes.optimizer,
  }));
  const phases = roles.flatMap((role) =>
    role.verbs().map(({ verb, instants }): Phase => {
      const all = instants.map((instant) => {
        const { activations, head, kvCache } = instant;
        const gathered = role.shards.gathered(instant.gathering);
        const holes = spec.device === 'cpu' ? Math.ceil(HEAP_HOLES * (activations + head)) : 0;
        const memory: MemoryParts = { ...resident, gathered, activations, head, kvCache, holes, process };
        const total = Object.values(memory).reduce((sum: number, bytes: number) => sum + bytes, 0);
        return { role: role.spec.name, verb, instant: instant.name, memory, total };
      });
      return largestPhase(all);
    }),
  );
  const peak = largestPhase(phases);
  return {
    roles: roles.map(({ spec: { name }, shards }) => ({
      role: name,
      count: shards.parameters,
      ...shards.state,
      host: shards.host,
    })),
    phases,
    peak,
    memory: spec.memory,
    fits: spec.memory === null ? null : peak.total <= spec.memory,
  };
}

const largestPhase = (phases: readonly Phase[]): Phase =>
  phases.reduce((most, phase) => (phase.total > most.total ? phase : most));

/** One rank's part of the largest micro-batch that packing makes of a load. */
export function microBatchShape(
  { sequences, longest, response }: Load,
  { capacity, ulysses }: Pick<RoleSpec, 'capacity' | 'ulysses'>,
): MicroBatchShape {
  const most = capacity * ulysses;
  // The last token of a sequence predicts nothing and has no row.
  const rows = roundUp(Math.max(Math.min(most, sequences * (longest - 1)), 1), ulysses * ROW_TILE) / ulysses;
  const predictions = roundUp(Math.max(Math.min(most, sequences * response), 1), ROW_TILE);
  // All rows of a part may predict.
  return { rows, predictions: ulysses === 1 ? predictions : Math.min(rows, predictions), longest, ulysses };
}

class RoleMemory {
  readonly shards: ShardMemory;
  private readonly machine: Machine;

  constructor(
    readonly spec: RoleSpec,
    { device, worldSize, threads }: PlanSpec,
  ) {
    this.machine = { device, elementBytes: spec.dtype === 'float32' ? 4 : 2, threads };
    this.shards = new ShardMemory(
      spec.model,
      worldSize,
      spec.strategy,
      this.machine,
      spec.update !== null,
      spec.shardSize,
      spec.lora?.mapping,
      spec.placement,
    );
  }

  verbs(): { verb: string; instants: Instant[] }[] {
    const { spec, machine } = this;
    const found: { verb: string; instants: Instant[] }[] = [];
    const owned = (param: string): number => this.shards.owned(param);
    if (machine.device === 'cpu')
      found.push({ verb: 'load', instants: [loadingInstant(spec.model, machine, owned)] });
    for (const rollout of spec.rollouts)
      found.push({ verb: rollout.verb, instants: generationInstants(spec.model, rollout, machine) });
    if (spec.inference !== null) {
      const shape = microBatchShape(spec.inference, spec);
      found.push({
        verb: INFERENCE_VERB[spec.name],
        instants: inferenceInstants(spec.model, shape, machine),
      });
    }
    if (spec.update !== null) {
      const shape = microBatchShape(spec.update, spec);
      const instants = trainingInstants(spec.model, shape, machine, spec.gradientCheckpointing);
      found.push({ verb: 'update', instants });
    }
    return found;
  }
}
