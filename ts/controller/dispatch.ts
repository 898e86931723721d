import { TroupeError } from '../errors';
import type { EngineArgs, EngineMethod, EngineResult } from '../worker/protocol';
import type { WorkerGroup } from './worker_group';

// Ways to spread one call over the ranks of a group.

type Caller = Pick<WorkerGroup, 'worldSize' | 'callAll' | 'callRank'>;

/** The same arguments on every rank; results by rank. */
export function oneToAll<M extends EngineMethod>(
  group: Caller,
  engine: string,
  method: M,
  args: EngineArgs<M>,
): Promise<EngineResult<M>[]> {
  return group.callAll(engine, method, () => args);
}

/** Every rank does the same work, and the first one speaks for all: for results that all ranks agree on. */
export async function rankZero<M extends EngineMethod>(
  group: Caller,
  engine: string,
  method: M,
  args: EngineArgs<M>,
): Promise<EngineResult<M>> {
  const results = await oneToAll(group, engine, method, args);
  return results[0] as EngineResult<M>;
}

/**
 * How the ranks of a group share data: `neighbours` ranks side by side and the ranks of all `stages` of a pipeline, which lie
 * worldSize / stages apart, are given the same and give the same results.
 */
export interface DataLayout {
  neighbours: number;
  stages: number;
}

/** Which of the shards a rank of `worldSize` works on. */
export function shardOf(rank: number, worldSize: number, { neighbours, stages }: DataLayout): number {
  return Math.floor((rank % (worldSize / stages)) / neighbours);
}

/** How many shards a batch is cut into. */
export const shardCount = (worldSize: number, { neighbours, stages }: DataLayout): number =>
  worldSize / stages / neighbours;

/** The ranks that work on each shard, in order. */
export function ranksByShard(worldSize: number, layout: DataLayout): number[][] {
  const groups: number[][] = Array.from({ length: shardCount(worldSize, layout) }, () => []);
  for (let rank = 0; rank < worldSize; rank++) groups[shardOf(rank, worldSize, layout)]?.push(rank);
  return groups;
}

/**
 * One shard of the data for the ranks that share it, which do the same call together; `collect` puts the results of the first
 * rank of each, in the order of the shards, together again.
 */
export async function splitCollect<M extends EngineMethod, R>(
  group: Caller,
  engine: string,
  method: M,
  shards: EngineArgs<M>[],
  collect: (results: EngineResult<M>[]) => R,
  layout: DataLayout = { neighbours: 1, stages: 1 },
): Promise<R> {
  const { worldSize } = group;
  const count = shardCount(worldSize, layout);
  if (shards.length !== count) {
    const sharing = layout.neighbours * layout.stages;
    const each = sharing === 1 ? 'rank' : `${sharing} ranks`;
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `${method} of '${engine}': expected one shard per ${each} (${count}), got ${shards.length}`,
    );
  }
  const results = await group.callAll(
    engine,
    method,
    (rank) => shards[shardOf(rank, worldSize, layout)] as EngineArgs<M>,
  );
  return collect(shards.map((_, shard) => results[shard * layout.neighbours] as EngineResult<M>));
}
