// What a run writes of its plan, for a comparison with what was measured.
import type { PlanFile } from '../records/schema';
import { EngineMemory } from './engine_memory';
import { type PlanSpec, planMemory } from './plan';

/** Bytes of the rank of each pool that holds most; `read` reads the shapes of the models. Rejects soon after `stop`. */
export function planFile(
  read: (engines: EngineMemory) => Promise<readonly PlanSpec[]>,
  stop: AbortSignal,
): Promise<PlanFile> {
  return EngineMemory.use(async (engines) => {
    const pools: PlanFile['pools'] = [];
    for (const spec of await read(engines)) {
      const { phases, peak } = await planMemory(spec, engines);
      pools.push({
        name: spec.pool?.name ?? '',
        device: spec.device,
        worldSize: spec.worldSize,
        memory: spec.memory,
        peak: { role: peak.role, verb: peak.verb, total: peak.total },
        phases: phases.map((phase) => ({ ...phase, memory: { ...phase.memory } })),
      });
    }
    return { pools };
  }, stop);
}
