// Which host a rank runs on, and what it shares there.
import { availableParallelism } from 'node:os';
import type { PoolPlace, WorkerSpec } from './launcher';

export interface SpecOptions {
  /** Where the worker is to dial, and what it has to show there. */
  controller: string;
  token: string;
  device: 'cpu' | 'cuda';
  numThreads: number | undefined;
  cores: number | undefined;
}

/** Ranks over hosts, as many on each; of a pool, beside the workers of others. */
export class RankPlaces {
  /** Where the run has several. */
  readonly pool: string | null;
  /** Workers of all groups on one host. */
  readonly localWorldSize: number;
  readonly perHost: number;
  private readonly firstLocalRank: number;

  constructor(
    private readonly worldSize: number,
    hosts: number,
    place: PoolPlace | null,
  ) {
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

  /** What the worker of a rank is started as. `cores`: of its host; default: this machine's. `numThreads`: default: a share of these. */
  spec(rank: number, { controller, token, device, numThreads, cores }: SpecOptions): WorkerSpec {
    const { pool, localWorldSize, worldSize } = this;
    const localRank = this.localRank(rank);
    return {
      rank,
      worldSize,
      host: this.hostOf(rank),
      localRank,
      localWorldSize,
      pool,
      device,
      numThreads: numThreads || this.numThreads(cores),
      env: {
        TROUPE_CONTROLLER: controller,
        TROUPE_TOKEN: token,
        RANK: String(rank),
        WORLD_SIZE: String(worldSize),
        LOCAL_RANK: String(localRank),
      },
    };
  }

  /** Of a worker on a host of `cores` (default: this machine's); null: its own choice. */
  numThreads(cores: number = availableParallelism()): number | null {
    return this.localWorldSize === 1 ? null : Math.max(1, Math.floor(cores / this.localWorldSize));
  }
}
