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

/** One shard of the data per rank; `collect` puts the results, by rank, together again. */
export async function splitCollect<M extends EngineMethod, R>(
  group: Caller,
  engine: string,
  method: M,
  shards: EngineArgs<M>[],
  collect: (results: EngineResult<M>[]) => R,
): Promise<R> {
  if (shards.length !== group.worldSize) {
    throw new TroupeError(
      'INVALID_ARGUMENT',
      `${method} of '${engine}': expected one shard per rank (${group.worldSize}), got ${shards.length}`,
    );
  }
  return collect(await group.callAll(engine, method, shards));
}
