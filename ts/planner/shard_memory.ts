// Parameters, gradients and optimiser state of one rank, from native/model/parameter_store.cc and native/fsdp/sharding.cc.
import type { TensorMapping } from '../model/names';
import type { NativeModelConfig } from '../native/bridge';
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

const FLOAT = 4;

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
  ) {
    this.groups = parameterGroups(config, adapters);
    this.ways = strategy === 'no_shard' ? 1 : Math.min(shardSize ?? worldSize, worldSize);
  }

  get parameters(): number {
    return sum(this.groups.map((group) => group.parameters));
  }

  get state(): StateBytes {
    const own = sum(this.groups.map((group) => this.own(group)));
    const trained = sum(this.trained.map((group) => this.own(group)));
    const copy = this.machine.elementBytes === FLOAT ? 0 : this.machine.elementBytes;
    return {
      parameters: own * (FLOAT + copy),
      gradients: trained * FLOAT,
      optimizer: 2 * trained * FLOAT,
    };
  }

  /** Bytes beside the state at an instant: whole parameters and gradients, and buffers of collectives. */
  gathered(when: Gathering): number {
    if (when === 'optimizer step') return this.optimizerTemporaries();
    if (when === 'nothing' || this.worldSize === 1 || this.strategy === 'no_shard') return 0;
    const elements = (groups: readonly ParameterGroup[]): number[] =>
      groups.map((group) => paddedElements(group, this.ways));
    const { block, roots: allRoots, root } = this.largest(this.groups);
    const trained = this.largest(this.trained);
    // reduce_scatter receives as much as it sends, and adds it to one shard.
    const received = (whole: number): number => whole + whole / this.ways;
    const gradients: Readonly<Record<Exclude<Gathering, 'optimizer step' | 'nothing'>, number>> = {
      'gathering a root': 0,
      'inference block': 0,
      'inference head': 0,
      'all parameters': 0,
      'training forward': trained.roots,
      'training backward': trained.roots + trained.block,
      'reducing a block': trained.roots + trained.block + received(trained.block),
      'reducing a root': trained.roots + received(trained.root),
    };
    const blockIsWhole =
      when !== 'gathering a root' && when !== 'inference head' && when !== 'reducing a root';
    const parameters =
      when === 'all parameters' || this.strategy === 'shard_grad_op'
        ? sum(elements(this.groups))
        : allRoots + (blockIsWhole ? block : 0);
    // c10d's Gloo gathers into a tensor of its own first.
    const copied = when === 'gathering a root' && this.machine.device === 'cpu' ? root : 0;
    return (parameters + copied) * this.machine.elementBytes + gradients[when] * FLOAT;
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

  /** Replicas receive each other's gradients; a GPU makes copies for the norm and the step (optim/adamw.cc). */
  private optimizerTemporaries(): number {
    const own = Math.max(0, ...this.trained.map((group) => this.own(group)));
    const replicas = this.worldSize / this.ways;
    const received = replicas > 1 ? (own + Math.ceil(own / replicas)) * FLOAT : 0;
    const norm = this.machine.device === 'cuda' ? own * (8 + 8) : 0;
    return Math.max(received, norm);
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
