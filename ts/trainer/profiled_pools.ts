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
    await Promise.all(
      this.pools.map(({ group, profile: { cuda, shapes, memory, pieces }, ranks }) =>
        group.beginProfile(ranks, { cuda: cuda && group.device === 'cuda', shapes, memory, pieces }),
      ),
    );
  }

  async end(): Promise<RankTrace[]> {
    const ended = this.pools.map(async ({ group, profile: { roles, scope }, ranks }) => {
      const traces = await group.endProfile(ranks, true);
      return traces.flatMap((own, i) =>
        own.map((trace) => ({ ...trace, roles, scope, rank: ranks[i] as number, ranks: group.worldSize })),
      );
    });
    return (await Promise.all(ended)).flat();
  }

  async drop(): Promise<void> {
    await Promise.all(this.pools.map(({ group, ranks }) => group.endProfile(ranks, false)));
  }
}
