import { ConfigError } from '../errors';
import { advise } from '../planner/advice';
import { formatBytes } from '../planner/byte_size';
import { type ConfiguredPlan, planSpecOf } from '../planner/from_config';
import { type Plan, planMemory } from '../planner/plan';
import { renderAdvice, renderPlan } from '../planner/render';
import { collectiveTotals, renderSimulation } from '../planner/render_simulation';
import { simulateRoles } from '../planner/simulate';

export interface PlanOptions {
  gpus: number | null;
  /** Bytes of one GPU. */
  gpuMemory: number | null;
  /** Print shards and collectives of the engine instead of the memory. */
  simulate: boolean;
  json: boolean;
}

const say = (lines: readonly string[]): void => {
  process.stdout.write(`${lines.join('\n')}\n`);
};

/**
 * `troupe plan`: the memory of every rank, before any weight is loaded. Returns the exit code.
 * @throws ConfigError when the configuration does not fit
 */
export async function plan(
  file: string,
  overrides: readonly string[],
  options: PlanOptions,
): Promise<number> {
  const { gpus, gpuMemory: memory, json } = options;
  const configured = planSpecOf({ file, overrides, gpus, memory });
  if (options.simulate) return await simulate(configured, json);
  const result = planMemory(configured.spec);
  const advice = result.fits === false ? advise(configured.spec, result) : null;
  if (json) {
    say([JSON.stringify(asJson(configured, result, advice), null, 2)]);
  } else {
    say([
      ...configured.notes.map((note) => `note: ${note}`),
      ...renderPlan(configured.spec, result),
      ...(advice === null ? [] : ['', ...renderAdvice(advice)]),
    ]);
  }
  if (advice === null) return 0;
  const { peak } = result;
  const best = advice.knobs[0];
  const hint = best === undefined ? '' : `; ${best.change} would save ${formatBytes(best.saves)}`;
  throw new ConfigError(
    `${file} does not fit: ${peak.verb} of the ${peak.role} takes ${formatBytes(peak.total)} per rank, ` +
      `which has ${formatBytes(memory as number)}${hint}`,
  );
}

/** `troupe plan --simulate`: one step of the engine's sharding, on shapes alone. */
async function simulate({ spec, notes }: ConfiguredPlan, json: boolean): Promise<number> {
  const roles = await simulateRoles(spec);
  if (json) {
    const { worldSize } = spec;
    const totals = roles.map((role) => ({ ...role, totals: collectiveTotals(role) }));
    say([JSON.stringify({ worldSize, notes, roles: totals }, null, 2)]);
  } else {
    say([...notes.map((note) => `note: ${note}`), ...renderSimulation(spec, roles)]);
  }
  return 0;
}

function asJson(
  { spec, notes }: ConfiguredPlan,
  { roles, phases, peak, fits }: Plan,
  advice: ReturnType<typeof advise> | null,
): unknown {
  const { device, worldSize, memory } = spec;
  return { device, worldSize, memory, notes, roles, phases, peak, fits, advice };
}
