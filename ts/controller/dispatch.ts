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
 * One shard of the data for each `ranksPerShard` neighbouring ranks, which do the same call together; `collect` puts the results
 * of the first rank of each, in their order, together again.
 */
export async function splitCollect<M extends EngineMethod, R>(
  group: Caller,
  engine: string,
  method: M,
  shards: EngineArgs<M>[],
  collect: (results: EngineResult<M>[]) => R,
  ranksPerShard = 1,
): Promise<R> {
  if (shards.length * ranksPerShard !== group.worldSize) {
    const each = ranksPerShard === 1 ? 'rank' : `${ranksPerShard} ranks`;
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `${method} of '${engine}': expected one shard per ${each} (${group.worldSize / ranksPerShard}), got ${shards.length}`,
    );
  }
  const shardOf = (rank: number): EngineArgs<M> => shards[Math.floor(rank / ranksPerShard)] as EngineArgs<M>;
  const results = await group.callAll(engine, method, shardOf);
  return collect(results.filter((_, rank) => rank % ranksPerShard === 0));
}
