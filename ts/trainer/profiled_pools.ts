// The workers of a run whose work is recorded.
import type { PoolName } from '../config/derived/pools';
import type { PoolProfile, ProfilePlan } from '../config/derived/profile';
import type { ResourcePools } from '../controller/resource_pools';
import type { WorkerGroup } from '../controller/worker_group';
import { TroupeError } from '../errors';
import type { WorkerTrace } from '../worker/profiling';

/** A trace, and whose it is. */
export interface RankTrace extends WorkerTrace {
  /** Those in its process, joined by hyphens. */
  roles: string;
  /** What all of their work is called. */
  scope: string;
  rank: number;
  /** Workers of its pool. */
  ranks: number;
}

/** The recording of a run's workers, as {@link StepProfiler} uses it. */
export interface Recorder {
  begin(): Promise<void>;
  end(): Promise<RankTrace[]>;
  drop(): Promise<void>;
}

interface Pool {
  group: WorkerGroup;
  profile: PoolProfile;
  ranks: number[];
}

export class ProfiledPools implements Recorder {
  private readonly pools: Pool[];

  /** @throws TroupeError NATIVE_UNAVAILABLE where the LibTorch of a pool has no profiler */
  constructor(plan: ProfilePlan, pools: Pick<ResourcePools<PoolName>, 'group'>) {
    this.pools = Object.entries(plan.pools).map(([name, profile]) => {
      const group = pools.group(name as PoolName);
      if (!group.buildInfo().profiler)
        throw new TroupeError(
          'NATIVE_UNAVAILABLE',
          '[profiler] the LibTorch at hand was built without a profiler (Kineto), which the steps to be profiled need: use one ' +
            'that `npx troupe setup` fetches, or give no steps',
        );
      const all = Array.from({ length: group.worldSize }, (_, rank) => rank);
      return { group, profile, ranks: all.filter((rank) => profile.ranks?.includes(rank) ?? true) };
    });
  }

  async begin(): Promise<void> {
    await this.each(({ group, profile: { cuda, shapes, memory, pieces } }, rank) =>
      group.callBinding(
        'beginProfile',
        [{ cuda: cuda && group.device === 'cuda', shapes, memory, pieces }],
        rank,
      ),
    );
  }

  async end(): Promise<RankTrace[]> {
    const traces = await this.each(async ({ group, profile: { roles, scope } }, rank) => {
      const own = await group.callBinding('endProfile', [true], rank);
      return own.map((trace) => ({ ...trace, roles, scope, rank, ranks: group.worldSize }));
    });
    return traces.flat();
  }

  async drop(): Promise<void> {
    await this.each(({ group }, rank) => group.callBinding('endProfile', [false], rank));
  }

  private each<T>(work: (pool: Pool, rank: number) => Promise<T>): Promise<T[]> {
    return Promise.all(this.pools.flatMap((pool) => pool.ranks.map((rank) => work(pool, rank))));
  }
}
