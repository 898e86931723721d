// The engine's own collectives for world sizes that are not at hand: native/engine/simulation.cc in one worker process.
import { WorkerGroup } from '../controller/worker_group';
import type { NativeSimulation } from '../native/bridge';
import type { RoleName } from '../roles/role_settings';
import { engineOptions, sequenceLoad } from './engine_request';
import { firstRankOf, type Place, placesThatDiffer, rowParts } from './places';
import type { Load, PlanSpec, RoleSpec } from './plan';

/** One rank of a role. */
export interface RoleSimulation extends Place {
  role: RoleName;
  /** Micro-batches per rank, or per ranks that share them, in one optimiser step (in one pass, for a role that does not learn). */
  microBatches: number;
  simulation: NativeSimulation;
}

/** One optimiser step of every role on one rank of each of its stages that differ: its shards and its collectives. Starts one worker. */
export async function simulateRoles(spec: PlanSpec): Promise<RoleSimulation[]> {
  const group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu', closeTimeoutMs: 0 });
  try {
    const results: RoleSimulation[] = [];
    for (const role of spec.roles) {
      const microBatches = microBatchesOf(role);
      const load = sequenceLoad(
        role,
        role.update ?? role.inference ?? { sequences: 1, longest: 2, response: 1 },
      );
      for (const { stages } of placesThatDiffer({ roles: [role], worldSize: spec.worldSize })) {
        const rank = firstRankOf(role, stages[0] as number, spec.worldSize);
        const simulation = await group.callBinding('simulateUpdate', [
          engineOptions(role, spec),
          rank,
          spec.worldSize,
          load,
          spec.device === 'cuda',
        ]);
        results.push({ role: role.name, rank, stages, microBatches, simulation });
      }
    }
    return results;
  } finally {
    await group.close();
  }
}

/** As many as the longest sequences take; the ranks agree on the most that one of them has. */
export function microBatchesOf(role: RoleSpec): number {
  const load = role.update ?? role.inference;
  return load === null ? 1 : Math.ceil(load.sequences / sequencesPerMicroBatch(role, load));
}

export function sequencesPerMicroBatch(role: RoleSpec, { longest }: Load): number {
  return Math.max(1, Math.floor((role.capacity * rowParts(role)) / Math.max(1, longest - 1)));
}
