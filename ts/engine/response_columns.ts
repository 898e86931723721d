// Numbers per response token that the ranks of an engine compute, each received into its place in the batch.
import type { Batch } from '../batch/batch';
import type { NativeTokenBatch } from '../native/bridge';
import { land } from '../worker/message_arrays';
import type { EngineArgs, EngineMethod, EngineResult } from '../worker/protocol';
import { runsOf } from './batch_part';
import type { RoleEngine } from './role_engine';
import { shardByRank } from './shards';

/** [ΣR] of a batch, by name. `argsOf`: of the call for the tokens of one shard; `columnsOf`: its result, by name; `landMore`: where else of it goes. */
export async function responseColumns<M extends EngineMethod, K extends string>(
  engine: RoleEngine,
  batch: Batch,
  method: M,
  names: readonly K[],
  argsOf: (tokens: NativeTokenBatch, indices: readonly number[]) => EngineArgs<M>,
  columnsOf: (result: EngineResult<M>) => Record<K, Float32Array | null>,
  landMore: (result: EngineResult<M>, indices: readonly number[]) => void = () => undefined,
): Promise<Record<K, Float32Array>> {
  const shards = shardByRank(batch, engine.dataParallelSize);
  const args = shards.map(({ tokens, indices }) => argsOf(tokens, indices));
  if (shards.length === 1)
    return engine.splitCollect(method, args, ([all]) => {
      landMore(all as EngineResult<M>, shards[0]?.indices ?? []);
      return columnsOf(all as EngineResult<M>);
    }) as never;
  const columns = Object.fromEntries(
    names.map((name) => [name, engine.memory.float32(batch.numResponseTokens)]),
  ) as Record<K, Float32Array>;
  await engine.splitLand(method, args, (shard, result) => {
    const own = columnsOf(result);
    landMore(result, shards[shard]?.indices ?? []);
    for (const name of names)
      land(own[name] as Float32Array, responsePlaces(batch, shards[shard]?.indices ?? [], columns[name]));
  });
  return columns;
}

/** Where the responses of the sequences `indices`, ascending, lie in a column [ΣR]. */
export function responsePlaces(
  { responseOffsets }: Batch,
  indices: readonly number[],
  column: Float32Array,
): Float32Array[] {
  return runsOf(indices).map(([first, end]) => column.subarray(responseOffsets[first], responseOffsets[end]));
}
