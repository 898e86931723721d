import { totalmem } from 'node:os';
import { formatBytes } from '../base/byte_size';
import { ConfigError } from '../errors';
import { type Advice, advise } from '../planner/advice';
import { type ControllerPlan, planController } from '../planner/controller_memory';
import { EngineMemory } from '../planner/engine_memory';
import { type ConfiguredPlan, configuredPlan } from '../planner/from_config';
import { bubbleFraction, pipelineTimeline } from '../planner/pipeline_timeline';
import { type Plan, type PlanSpec, planMemory } from '../planner/plan';
import { renderAdvice, renderPlan, renderPools } from '../planner/render';
import { type ControllerMachine, controllerWarnings, renderController } from '../planner/render_controller';
import { renderPipeline } from '../planner/render_pipeline';
import { axisTotals, collectiveTotals, renderSimulation } from '../planner/render_simulation';
import { pipelineOf } from '../planner/role_pipeline';
import { type RoleSimulation, simulateRoles } from '../planner/simulate';
import { trafficFormulas } from '../planner/traffic';

export interface PlanOptions {
  gpus: number | null;
  /** Bytes of one GPU. */
  gpuMemory: number | null;
  /** Bytes of the machine that the trainer's process runs on; null: of this one. */
  controllerMemory: number | null;
  /** Print shards and collectives of the engine instead of the memory. */
  simulate: boolean;
  /** Draw the schedules of updates over so many stages instead. */
  pipeline: { stages: number; chunks: number } | null;
  json: boolean;
}

const say = (lines: readonly string[]): void => {
  process.stdout.write(`${lines.join('\n')}\n`);
};

/** What is worked out for one pool. */
interface PoolResult {
  spec: PlanSpec;
  plan: Plan;
  /** null: it fits, or that is not known. */
  advice: Advice | null;
}

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
  const read = (engines: EngineMemory): Promise<ConfiguredPlan> =>
    configuredPlan({ file, overrides, gpus, memory }, engines);
  if (options.pipeline !== null) return drawPipelines(await EngineMemory.use(read), options.pipeline, json);
  if (options.simulate) return await simulate(await EngineMemory.use(read), json);
  const { configured, results } = await EngineMemory.use(async (engines) => {
    const configured = await read(engines);
    const results: PoolResult[] = [];
    for (const spec of configured.pools) {
      const plan = await planMemory(spec, engines);
      results.push({ spec, plan, advice: plan.fits === false ? await advise(spec, plan, engines) : null });
    }
    return { configured, results };
  });
  const machine = {
    memory: options.controllerMemory ?? totalmem(),
    given: options.controllerMemory !== null,
  };
  if (json) {
    const plan = asJson(configured.notes, results) as object;
    say([JSON.stringify({ ...plan, ...controllerJson(configured, machine) }, null, 2)]);
  } else {
    say([
      ...configured.notes.map((note) => `note: ${note}`),
      ...renderPools(configured.pools),
      ...joined([...results.map(renderResult), ...controllerLines(configured, machine)]),
    ]);
  }
  const tooLarge = results.filter(({ plan }) => plan.fits === false);
  if (tooLarge.length > 0) throw new ConfigError(`${file} does not fit: ${tooLarge.map(reason).join('; ')}`);
  return 0;
}

const renderResult = ({ spec, plan, advice }: PoolResult): string[] => [
  ...renderPlan(spec, plan),
  ...(advice === null ? [] : ['', ...renderAdvice(advice)]),
];

function controllerLines({ controller }: ConfiguredPlan, machine: ControllerMachine): string[][] {
  if (controller === null) return [];
  const { spec, notes } = controller;
  const plan = planController(spec);
  return [
    [
      ...renderController(spec, plan, machine),
      ...notes.map((note) => `note: ${note}`),
      ...controllerWarnings(spec, plan, machine).map((warning) => `warning: ${warning}`),
    ],
  ];
}

/** Of the trainer's process; nothing in fine-tuning. */
function controllerJson(
  { controller }: ConfiguredPlan,
  machine: ControllerMachine,
): { controller?: ControllerPlan & { memory: number; notes: string[]; warnings: string[] } } {
  if (controller === null) return {};
  const { spec, notes } = controller;
  const plan = planController(spec);
  const warnings = controllerWarnings(spec, plan, machine);
  return { controller: { ...plan, memory: machine.memory, notes, warnings } };
}

/** An empty line between the parts. */
const joined = (parts: readonly (readonly string[])[]): string[] =>
  parts.flatMap((lines, i) => (i === 0 ? lines : ['', ...lines]));

function reason({ plan: { peak, memory }, advice }: PoolResult): string {
  const best = advice?.knobs[0];
  const hint = best === undefined ? '' : `; ${best.change} would save ${formatBytes(best.saves)}`;
  return (
    `${peak.verb} of the ${peak.role} takes ${formatBytes(peak.total)} per rank, ` +
    `which has ${formatBytes(memory as number)}${hint}`
  );
}

/** `troupe plan --simulate`: one step of the engine's sharding, on shapes alone. */
async function simulate({ pools, notes }: ConfiguredPlan, json: boolean): Promise<number> {
  const simulated: { spec: PlanSpec; roles: RoleSimulation[] }[] = [];
  for (const spec of pools) simulated.push({ spec, roles: await simulateRoles(spec) });
  if (json) {
    const pools = simulated.map(({ spec, roles }) => ({
      spec,
      worldSize: spec.worldSize,
      roles: roles.map((role) => ({
        ...role,
        totals: collectiveTotals(role),
        axes: axisTotals(role),
        formulas: trafficFormulas(
          spec.roles.find(({ name }) => name === role.role) as PlanSpec['roles'][number],
          role,
          spec,
        ),
      })),
    }));
    say([JSON.stringify({ notes, ...byPool(pools) }, null, 2)]);
  } else {
    say([
      ...notes.map((note) => `note: ${note}`),
      ...renderPools(pools),
      ...joined(simulated.map(({ spec, roles }) => renderSimulation(spec, roles))),
    ]);
  }
  return 0;
}

/** `troupe plan --pipeline`: what the stages of each role that learns compute when in an update. */
function drawPipelines(
  { pools, notes }: ConfiguredPlan,
  split: { stages: number; chunks: number },
  json: boolean,
): number {
  const pipelines = pools.flatMap((spec) =>
    spec.roles
      .filter(({ update }) => update !== null)
      .map((role) => ({ role: role.name, ...pipelineOf(role, spec.worldSize, split) })),
  );
  if (json) {
    const drawn = pipelines.map((pipeline) => ({
      ...pipeline,
      bubble: bubbleFraction(pipeline.shape),
      timeline: pipelineTimeline(pipeline.shape),
    }));
    say([JSON.stringify({ notes, pipelines: drawn }, null, 2)]);
  } else {
    say([
      ...notes.map((note) => `note: ${note}`),
      ...joined(
        pipelines.map(({ role, layers, shape }) => [
          ...renderPipeline(role, shape),
          `  layers of each range: ${layers.join(', ')}`,
        ]),
      ),
    ]);
  }
  return 0;
}

function asJson(notes: readonly string[], results: readonly PoolResult[]): unknown {
  const pools = results.map(({ spec, plan, advice }) => {
    const { device, worldSize, memory } = spec;
    const { rank, stages, roles, phases, peak, ranks, fits } = plan;
    return { spec, device, worldSize, memory, rank, stages, roles, phases, peak, ranks, fits, advice };
  });
  return { notes, ...byPool(pools) };
}

/** The pool of the policy, and below it each of the others: rolloutPool, rewardPool. */
function byPool<T extends { spec: PlanSpec }>(pools: readonly T[]): object {
  const [policy, ...others] = pools.map(({ spec: { pool }, ...rest }) => ({ name: pool?.name, rest }));
  return Object.assign({ ...policy?.rest }, ...others.map(({ name, rest }) => ({ [`${name}Pool`]: rest })));
}
