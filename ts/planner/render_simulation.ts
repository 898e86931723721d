import { formatBytes } from '../base/byte_size';
import type { NativeHeldBytes, NativeSimulatedCollective } from '../native/bridge';
import { rowParts } from './places';
import type { PlanSpec, RoleSpec } from './plan';
import { layoutTexts, table } from './render';
import { renderPipeline } from './render_pipeline';
import { pipelineShape } from './role_pipeline';
import type { RoleSimulation } from './simulate';
import { trafficFormulas } from './traffic';

/** Collectives of one kind over all groups that they move; blocks count as one. */
export type CollectiveTotal = NativeSimulatedCollective;

/** 'layers.0', 'layers.1', ... become 'blocks', 'layers.0 attention', ... 'attention'. */
export function collectiveTotals({ simulation }: RoleSimulation): CollectiveTotal[] {
  const totals = new Map<string, CollectiveTotal>();
  for (const { axis, phase, name, subject: group, count, bytes } of simulation.collectives) {
    const layer = group.startsWith('layers.');
    const subject = !layer ? group : group.endsWith(' attention') ? 'attention' : 'blocks';
    const key = `${axis} ${phase} ${name} ${subject}`;
    const total = totals.get(key) ?? { axis, phase, name, subject, count: 0, bytes: 0 };
    total.count += count;
    total.bytes += bytes;
    totals.set(key, total);
  }
  return [...totals.values()];
}

/** What `troupe plan --simulate` prints: of each role the rank that sends most, and what the others of its pipeline send. */
export function renderSimulation(spec: PlanSpec, simulated: readonly RoleSimulation[]): string[] {
  return spec.roles.flatMap((role, i) => {
    const ranks = simulated.filter(({ role: name }) => name === role.name);
    const most = ranks.reduce((one, other) => (bytesOf(other) > bytesOf(one) ? other : one));
    const { pipeline } = role.layout;
    return [
      ...(i === 0 ? [] : ['']),
      ...renderRole(spec, most, role),
      ...(pipeline.stages === 1
        ? []
        : [
            ...ranks.map(
              (rank) =>
                `  rank ${rank.rank} (stage ${rank.stages[0]} of ${pipeline.stages}): ${axesText(rank)}`,
            ),
            ...(role.update === null ? [] : ['', ...renderPipeline(role.name, pipelineShape(role))]),
          ]),
    ];
  });
}

const bytesOf = ({ simulation }: RoleSimulation): number =>
  simulation.collectives.reduce((all, { bytes }) => all + bytes, 0);

/** Bytes along each axis. */
export function axisTotals({ simulation }: RoleSimulation): Record<string, number> {
  const totals: Record<string, number> = {};
  for (const { axis, bytes } of simulation.collectives) totals[axis] = (totals[axis] ?? 0) + bytes;
  return totals;
}

const axesText = (simulated: RoleSimulation): string =>
  Object.entries(axisTotals(simulated))
    .map(([axis, bytes]) => `${axis} ${formatBytes(bytes)}`)
    .join(', ');

const stateOf = ({ parameters, gradients, moments }: NativeHeldBytes): string =>
  `parameters ${formatBytes(parameters)}, gradients ${formatBytes(gradients)}, moments ${formatBytes(moments)}`;

function renderRole({ worldSize, device }: PlanSpec, simulated: RoleSimulation, spec: RoleSpec): string[] {
  const { role, microBatches, simulation } = simulated;
  const { state, groups } = simulation;
  const { parallel, pipeline } = spec.layout;
  const sharing = rowParts(spec) * parallel.tp * pipeline.stages;
  const kinds = new Map<string, { count: number; whole: number; own: number }>();
  for (const { name, whole, own } of groups) {
    const kind = name.startsWith('layers.') ? 'blocks' : name;
    const sum = kinds.get(kind) ?? { count: 0, whole: 0, own: 0 };
    kinds.set(kind, { count: sum.count + 1, whole: sum.whole + whole, own: sum.own + own });
  }
  const step = spec.update === null ? 'a pass' : 'an optimiser step';
  const totals = collectiveTotals(simulated);
  const sum = (of: (total: CollectiveTotal) => number): number =>
    totals.reduce((all, total) => all + of(total), 0);
  const lines = [
    `${role}: ${[spec.strategy, ...layoutTexts(spec)].join(', ')} over ${worldSize} ranks in ${spec.dtype}; ${step} of ${microBatches} ` +
      `micro-batch${microBatches === 1 ? '' : 'es'} per ${sharing === 1 ? 'rank' : `${sharing} ranks that share them`}`,
    `${spec.layout.pipeline.stages === 1 ? 'one rank' : `rank ${simulated.rank}`} holds: ${stateOf(state)}`,
    ...(state.host.parameters + state.host.gradients + state.host.moments > 0
      ? [`on its host: ${stateOf(state.host)}`]
      : []),
    '',
    ...table([
      ['parameters', 'groups', 'elements, padded', 'of one rank'],
      ...[...kinds].map(([kind, k]) => [
        kind,
        ...[k.count, k.whole, k.own].map((n) => n.toLocaleString('en-US')),
      ]),
    ]),
  ];
  if (totals.length === 0) return [...lines, '', 'no collectives: there is one rank'];
  return [
    ...lines,
    '',
    ...table([
      ['collective', 'axis', 'of', 'number', 'bytes each', 'bytes in all'],
      ...totals.map(({ axis, phase, name, subject, count, bytes }) => [
        `${phase}: ${name}`,
        axis,
        subject,
        String(count),
        formatBytes(Math.round(bytes / count)),
        formatBytes(bytes),
      ]),
      ['together', '', '', String(sum(({ count }) => count)), '', formatBytes(sum(({ bytes }) => bytes))],
    ]),
    `bytes that one rank sends; along each axis: ${axesText(simulated)}`,
    ...trafficFormulas(spec, simulated, { worldSize, device }).map(
      ({ axis, text, bytes }) => `  ${axis}, of the layers: ${text} = ${formatBytes(bytes)}`,
    ),
  ];
}
