// Which host a rank runs on, and what it shares there.
import { availableParallelism } from 'node:os';
import type { PoolPlace } from './launcher';

/** Ranks over hosts, as many on each; of a pool, beside the workers of others. */
export class RankPlaces {
  /** Where the run has several. */
  readonly pool: string | null;
  /** Workers of all groups on one host. */
  readonly localWorldSize: number;
  private readonly perHost: number;
  private readonly firstLocalRank: number;

  constructor(worldSize: number, hosts: number, place: PoolPlace | null) {
    this.perHost = worldSize / hosts;
    this.pool = place?.name ?? null;
    this.firstLocalRank = place?.firstLocalRank ?? 0;
    this.localWorldSize = place?.localWorldSize ?? this.perHost;
  }

  hostOf(rank: number): number {
    return Math.floor(rank / this.perHost);
  }

  /** Among all workers of the run on its host. */
  localRank(rank: number): number {
    return this.firstLocalRank + (rank % this.perHost);
  }

  /** Of a worker on a host of `cores` (default: this machine's); null: its own choice. */
  numThreads(cores: number = availableParallelism()): number | null {
    return this.localWorldSize === 1 ? null : Math.max(1, Math.floor(cores / this.localWorldSize));
  }
}
