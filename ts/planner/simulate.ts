// The engine's own sharding for world sizes that are not at hand: native/engine/simulation.cc in one worker process.
import { WorkerGroup } from '../controller/worker_group';
import type { NativeSimulation } from '../native/bridge';
import type { RoleName } from '../roles/role_settings';
import { engineOptions } from './engine_request';
import type { Load, PlanSpec, RoleSpec } from './plan';

export interface RoleSimulation {
  role: RoleName;
  /** Micro-batches per rank in one optimiser step (in one pass, for a role that does not learn). */
  microBatches: number;
  simulation: NativeSimulation;
}

/** One optimiser step of every role on rank 0 of `spec.worldSize`: its shards and its collectives. Starts one worker. */
export async function simulateRoles(spec: PlanSpec): Promise<RoleSimulation[]> {
  const group = await WorkerGroup.launch({ worldSize: 1, device: 'cpu' });
  try {
    const results: RoleSimulation[] = [];
    for (const role of spec.roles) {
      const microBatches = microBatchesOf(role);
      const simulation = await group.callBinding('simulateUpdate', [
        engineOptions(role, spec),
        0,
        spec.worldSize,
        { microBatches, ...rowsOf(role) },
      ]);
      results.push({ role: role.name, microBatches, simulation });
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

function sequencesPerMicroBatch({ capacity, ulysses }: RoleSpec, { longest }: Load): number {
  return Math.max(1, Math.floor((capacity * ulysses) / Math.max(1, longest - 1)));
}

/** Of the longest sequences: rows of a full micro-batch, response tokens of all. */
function rowsOf(role: RoleSpec): { rows: number; responses: number } {
  const load = role.update ?? role.inference;
  if (load === null) return { rows: 0, responses: 0 };
  const sequences = Math.min(load.sequences, sequencesPerMicroBatch(role, load));
  return { rows: sequences * (load.longest - 1), responses: load.sequences * load.response };
}
