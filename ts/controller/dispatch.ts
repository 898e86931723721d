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

const ALONE: DataLayout = { neighbours: 1, stages: 1 };

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
  layout: DataLayout = ALONE,
): Promise<R> {
  return collect(await callShards(group, engine, method, shards, layout));
}

/**
 * As {@link splitCollect}, but the arrays of the results are received where they are wanted: `land` says where (message_arrays.ts), when
 * they are about to come and once more with the whole result, for arrays that came with it.
 */
export async function splitLand<M extends EngineMethod>(
  group: Caller,
  engine: string,
  method: M,
  shards: EngineArgs<M>[],
  land: (shard: number, result: EngineResult<M>) => void,
  layout: DataLayout = ALONE,
): Promise<void> {
  const { worldSize } = group;
  const results = await callShards(group, engine, method, shards, layout, (rank, result) => {
    const shard = shardOf(rank, worldSize, layout);
    if (rank === shard * layout.neighbours) land(shard, result);
  });
  for (const [shard, result] of results.entries()) land(shard, result);
}

/** The results of the first rank of each shard. */
async function callShards<M extends EngineMethod>(
  group: Caller,
  engine: string,
  method: M,
  shards: EngineArgs<M>[],
  layout: DataLayout,
  land?: (rank: number, result: EngineResult<M>) => void,
): Promise<EngineResult<M>[]> {
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
    land,
  );
  return shards.map((_, shard) => results[shard * layout.neighbours] as EngineResult<M>);
}
