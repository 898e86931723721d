// Parameters, gradients and optimiser state of one rank, from native/parameters/parameter_store.cc and native/fsdp/sharding.cc.
import type { TensorMapping } from '../model/tensor_names';
import type { NativeModelConfig, NativeStateKinds, Reduction } from '../native/bridge';
import type { Machine } from './decoder_memory';
import {
  groupOf,
  type ParameterGroup,
  paddedElements,
  parameterGroups,
  trainsWithAdapters,
} from './parameter_groups';
import type { Gathering } from './pass_memory';

export type ShardingStrategy = 'full_shard' | 'shard_grad_op' | 'no_shard';

/** Bytes that a role holds for good on one rank. */
export interface StateBytes {
  /** float32 masters, and the copy in the compute dtype when it is another. */
  parameters: number;
  gradients: number;
  /** Both moments of AdamW. */
  optimizer: number;
}

/** Where the state of a role lies, and how it is brought together. */
export interface Placement {
  /** What is kept on the host. */
  offload: NativeStateKinds;
  prefetch: boolean;
  reduction: Reduction;
}

export const ON_DEVICE: Placement = {
  offload: { parameters: false, gradients: false, moments: false },
  prefetch: false,
  reduction: 'micro_batch',
};

type WithParameters = Exclude<Gathering, 'nothing' | 'optimizer step'>;

/** Instants at which the next block may be under way. */
const PREFETCHES: ReadonlySet<Gathering> = new Set([
  'inference block',
  'training forward',
  'training backward',
  'reducing a block',
]);
const TRAINING: ReadonlySet<Gathering> = new Set([
  'training forward',
  'training backward',
  'reducing a block',
  'reducing a root',
]);

const FLOAT = 4;

const NOTHING: StateBytes = { parameters: 0, gradients: 0, optimizer: 0 };

const sum = (numbers: readonly number[]): number => numbers.reduce((total, n) => total + n, 0);

/** How the parameters of one model lie on the ranks. */
export class ShardMemory {
  readonly groups: readonly ParameterGroup[];
  /** Ranks that share one copy. */
  private readonly ways: number;

  constructor(
    config: NativeModelConfig,
    private readonly worldSize: number,
    private readonly strategy: ShardingStrategy,
    private readonly machine: Machine,
    private readonly training: boolean,
    /** Ranks that share one copy of the state; null: all. */
    shardSize: number | null = null,
    private readonly adapters: readonly TensorMapping[] | null = null,
    private readonly placement: Placement = ON_DEVICE,
  ) {
    this.groups = parameterGroups(config, adapters);
    this.ways = strategy === 'no_shard' ? 1 : Math.min(shardSize ?? worldSize, worldSize);
  }

  get parameters(): number {
    return sum(this.groups.map((group) => group.parameters));
  }

  /** On the device. */
  get state(): StateBytes {
    return this.held(false);
  }

  /** On the host, which on a CPU is the same memory. */
  get host(): StateBytes {
    return this.held(true);
  }

  private held(onHost: boolean): StateBytes {
    const { parameters, gradients, moments } = this.placement.offload;
    const own = sum(this.groups.map((group) => this.own(group)));
    const trained = sum(this.trained.map((group) => this.own(group)));
    return {
      ...NOTHING,
      ...(parameters === onHost ? { parameters: own * this.parameterBytes } : {}),
      ...(gradients === onHost ? { gradients: trained * FLOAT } : {}),
      ...(moments === onHost ? { optimizer: 2 * trained * FLOAT } : {}),
    };
  }

  /** Masters, and the copy in the compute dtype when it is another. */
  private get parameterBytes(): number {
    const { elementBytes } = this.machine;
    return FLOAT + (elementBytes === FLOAT ? 0 : elementBytes);
  }

  /** Bytes beside the state at an instant: whole parameters and gradients, buffers of collectives, and what is fetched from the host. */
  gathered(when: Gathering): number {
    if (when === 'optimizer step') return this.optimizerStep();
    if (when === 'nothing') return 0;
    return this.ways === 1 ? this.fetched(when) : this.wholeParameters(when) + this.wholeGradients(when);
  }

  private wholeParameters(when: WithParameters): number {
    const { machine, placement } = this;
    const { block, roots, root } = this.largest(this.groups);
    const blockIsWhole = !['gathering a root', 'inference head', 'reducing a root'].includes(when);
    const everything = when === 'all parameters' || this.strategy === 'shard_grad_op';
    const ahead = placement.prefetch && PREFETCHES.has(when);
    const whole = everything
      ? sum(this.groups.map((group) => paddedElements(group, this.ways)))
      : roots + (blockIsWhole ? block : 0) + (ahead ? block : 0);
    // c10d's Gloo gathers into a tensor of its own first.
    const underWay = when === 'gathering a root' ? root : ahead ? block : 0;
    const copied = machine.device === 'cpu' ? underWay : 0;
    // The shard that is sent comes from the host.
    const shard = placement.offload.parameters ? Math.max(block, root) / this.ways : 0;
    return (whole + copied + shard) * machine.elementBytes;
  }

  /** Whole gradients, what reduce_scatter receives (as much as it sends), and the shard that the sum is added to. */
  private wholeGradients(when: WithParameters): number {
    const { block, roots, root } = this.largest(this.trained);
    if (!TRAINING.has(when)) return 0;
    if (this.placement.reduction === 'mini_batch') return this.allGradients() * FLOAT;
    const elements: Readonly<Partial<Record<Gathering, number>>> = {
      'training forward': roots,
      'training backward': roots + block,
      'reducing a block': roots + block + this.received(block),
      'reducing a root': roots + this.received(root),
    };
    return (elements[when] as number) * FLOAT;
  }

  private received(whole: number): number {
    const shards = this.placement.offload.gradients ? 2 : 1;
    return whole + (shards * whole) / this.ways;
  }

  private allGradients(): number {
    return sum(this.trained.map((group) => paddedElements(group, this.ways)));
  }

  /** Of a rank that holds everything: what lies on the host comes as other strategies gather it. */
  private fetched(when: WithParameters): number {
    const { parameters, gradients } = this.placement.offload;
    const { block, roots } = this.largest(this.groups);
    const trained = this.largest(this.trained);
    const all = sum(this.groups.map((group) => this.own(group)));
    const whole = when === 'all parameters' ? all : roots + block;
    return (
      (parameters ? whole * this.machine.elementBytes : 0) +
      (gradients && TRAINING.has(when) ? (trained.roots + trained.block) * FLOAT : 0)
    );
  }

  private get trained(): readonly ParameterGroup[] {
    if (!this.training) return [];
    return this.adapters === null ? this.groups : this.groups.filter(trainsWithAdapters);
  }

  /** Elements of the largest block (a layer with its adapters), of all that lies outside blocks, and of the largest group there. */
  private largest(groups: readonly ParameterGroup[]): { block: number; roots: number; root: number } {
    const layers = new Map<string, number>();
    const roots: number[] = [];
    for (const group of groups) {
      const layer = /^layers\.\d+/.exec(group.name)?.[0];
      const elements = paddedElements(group, this.ways);
      if (layer === undefined) roots.push(elements);
      else layers.set(layer, (layers.get(layer) ?? 0) + elements);
    }
    return { block: Math.max(0, ...layers.values()), roots: sum(roots), root: Math.max(0, ...roots) };
  }

  /**
   * Replicas receive each other's gradients; a GPU makes copies for the norm (optim/adamw.cc); a step fetches one group's state.
   * Gradients that are summed once per mini-batch are whole until then.
   */
  private optimizerStep(): number {
    const { offload, reduction } = this.placement;
    const own = Math.max(0, ...this.trained.map((group) => this.own(group)));
    const replicas = this.worldSize / this.ways;
    const shard = offload.gradients ? own * FLOAT : 0;
    const received = replicas > 1 ? (own + Math.ceil(own / replicas)) * FLOAT + shard : 0;
    const norm = this.machine.device === 'cuda' ? own * (8 + 8) + shard : 0;
    const step =
      shard + (offload.parameters ? own * this.parameterBytes : 0) + (offload.moments ? own * 2 * FLOAT : 0);
    const summed =
      reduction === 'mini_batch' && this.ways > 1
        ? (this.allGradients() + this.received(own * this.ways)) * FLOAT
        : 0;
    return Math.max(received, norm, step, summed);
  }

  /** Elements of a parameter's group that a rank holds. */
  owned(param: string): number {
    const name = groupOf(param);
    return this.own(this.groups.find((group) => group.name === name) as ParameterGroup);
  }

  private own(group: ParameterGroup): number {
    return paddedElements(group, this.ways) / this.ways;
  }
}
