import { badOption, isRecord, requireOptions } from '../base/check_options';
import { show } from '../base/text';
import { TroupeError } from '../errors';
import type { NativeMemoryInfo } from '../native/bridge';
import type { WorkerGroupOptions } from './group_options';
import { WorkerGroup } from './worker_group';

export interface ResourcePoolsOptions<Name extends string>
  extends Omit<WorkerGroupOptions, 'worldSize' | 'pool' | 'hosts'> {
  /** Workers of each pool, by its name. Of the GPUs of this machine the first pool takes the first ones, and so on. */
  pools: Readonly<Partial<Record<Name, number>>>;
  /** Hosts of the launcher that a pool is spread over, the first ones; default 1. */
  hosts?: Readonly<Partial<Record<Name, number>>>;
}

/** Of one worker; pool null: there is one. */
export interface MemberMemory extends NativeMemoryInfo {
  rank: number;
  pool: string | null;
}

/**
 * The worker groups of one run, by name: roles whose engines are made in different pools work in different processes, on GPUs of
 * their own. Pools share nothing but the controller, and fail as a whole.
 */
export class ResourcePools<Name extends string> {
  /** Workers of all pools. */
  readonly worldSize: number;
  /** Resolves with the first cause when any pool fails; where there are several its message names the pool. */
  readonly failed: Promise<TroupeError>;
  readonly #groups: ReadonlyMap<string, WorkerGroup>;
  #closing: Promise<void> | null = null;

  /**
   * Starts the pools one after another. With several, default threads are a share of the cores among the workers of all.
   * @throws as WorkerGroup.launch, with no process of any pool left behind
   */
  static async launch<Name extends string>(given: ResourcePoolsOptions<Name>): Promise<ResourcePools<Name>> {
    requireOptions('ResourcePools', given);
    const { pools, hosts, ...options } = given;
    for (const [name, value] of Object.entries({ pools, hosts }))
      if (value !== undefined && !isRecord(value))
        throw badOption('ResourcePools', `${name}: expected an object of counts but got ${show(value)}`);
    const sizes = Object.entries(pools ?? {}) as [Name, number][];
    if (sizes.length === 0)
      throw new TroupeError('INVALID_ARGUMENT', 'pools: expected at least one, such as { policy: 2 }');
    const hostsOf = (name: Name): number => hosts?.[name] ?? 1;
    const localWorldSize = sizes.reduce((sum, [name, size]) => sum + size / hostsOf(name), 0);
    const groups = new Map<string, WorkerGroup>();
    let firstLocalRank = 0;
    try {
      for (const [name, worldSize] of sizes) {
        const place = sizes.length === 1 ? {} : { pool: { name, firstLocalRank, localWorldSize } };
        groups.set(name, await WorkerGroup.launch({ ...options, worldSize, hosts: hostsOf(name), ...place }));
        firstLocalRank += worldSize / hostsOf(name);
      }
    } catch (error) {
      const started = [...groups.values()];
      // A pool that was lost meanwhile came first.
      const first = started.find(({ failure }) => failure !== null)?.failure;
      await Promise.allSettled(started.map((group) => group.close()));
      throw first ?? error;
    }
    return new ResourcePools(groups);
  }

  private constructor(groups: ReadonlyMap<string, WorkerGroup>) {
    if (!(groups instanceof Map))
      throw badOption(
        'ResourcePools',
        'it is made by await ResourcePools.launch(options), not by new ResourcePools',
      );
    const all = [...groups.values()];
    this.#groups = groups;
    this.worldSize = all.reduce((sum, { worldSize }) => sum + worldSize, 0);
    this.failed = Promise.race(all.map(({ failed }) => failed));
  }

  /** The workers of a pool, for the option `group` of an engine. @throws TroupeError INVALID_ARGUMENT when there is none of this name */
  group(name: Name): WorkerGroup {
    const group = this.#groups.get(name);
    if (group !== undefined) return group;
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `there is no pool '${name}'; the pools are ${[...this.#groups.keys()].join(', ')}`,
    );
  }

  /** Named in the error when a worker of any pool dies. */
  setPhase(phase: string | null): void {
    for (const group of this.#groups.values()) group.setPhase(phase);
  }

  /** Of every worker of every pool. */
  async memoryInfo(): Promise<MemberMemory[]> {
    const one = this.#groups.size === 1;
    const groups = [...this.#groups].map(async ([name, group]) =>
      (await group.memoryInfo()).map((info, rank) => ({ ...info, rank, pool: one ? null : name })),
    );
    return (await Promise.all(groups)).flat();
  }

  /**
   * Closes every pool, also when closing one of them fails: then with that error. Work that is under way is finished first,
   * unless a pool has failed. Idempotent.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    const groups = [...this.#groups.values()];
    // Nobody waits any more for what the other pools are at.
    const failure = groups.find((group) => group.failure !== null)?.failure ?? null;
    if (failure !== null) for (const group of groups) group.abort(failure.message);
    const closed = await Promise.allSettled(groups.map((group) => group.close()));
    const failed = closed.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }
}
