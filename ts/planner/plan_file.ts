// What a run writes of its plan, for a comparison with what was measured.
import type { PlanFile } from '../records/schema';
import { type PlanSpec, planMemory } from './plan';

/** Bytes of one rank of each pool. */
export function planFile(pools: readonly PlanSpec[]): PlanFile {
  return {
    pools: pools.map((spec) => {
      const { phases, peak } = planMemory(spec);
      return {
        name: spec.pool?.name ?? '',
        device: spec.device,
        worldSize: spec.worldSize,
        memory: spec.memory,
        peak: { role: peak.role, verb: peak.verb, total: peak.total },
        phases: phases.map(({ role, verb, instant, memory, total }) => ({
          role,
          verb,
          instant,
          memory: { ...memory },
          total,
        })),
      };
    }),
  };
}
