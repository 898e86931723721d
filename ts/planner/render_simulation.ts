import { formatBytes } from '../base/byte_size';
import type { NativeHeldBytes } from '../native/bridge';
import type { PlanSpec, RoleSpec } from './plan';
import { table } from './render';
import type { RoleSimulation } from './simulate';

/** Collectives of one kind over all groups that they move; blocks count as one. */
export interface CollectiveTotal {
  phase: string;
  name: string;
  subject: string;
  count: number;
  /** That one rank sends in all of them. */
  bytes: number;
}

/** 'layers.0', 'layers.1', ... become 'blocks', 'layers.0 attention', ... 'attention'. */
export function collectiveTotals({ simulation }: RoleSimulation): CollectiveTotal[] {
  const totals = new Map<string, CollectiveTotal>();
  for (const { phase, name, subject: group, count, bytes } of simulation.collectives) {
    const layer = group.startsWith('layers.');
    const subject = !layer ? group : group.endsWith(' attention') ? 'attention' : 'blocks';
    const key = `${phase} ${name} ${subject}`;
    const total = totals.get(key) ?? { phase, name, subject, count: 0, bytes: 0 };
    total.count += count;
    total.bytes += bytes;
    totals.set(key, total);
  }
  return [...totals.values()];
}

/** What `troupe plan --simulate` prints. */
export function renderSimulation(spec: PlanSpec, roles: readonly RoleSimulation[]): string[] {
  return roles.flatMap((role, i) => [
    ...(i === 0 ? [] : ['']),
    ...renderRole(spec, role, spec.roles[i] as RoleSpec),
  ]);
}

const stateOf = ({ parameters, gradients, moments }: NativeHeldBytes): string =>
  `parameters ${formatBytes(parameters)}, gradients ${formatBytes(gradients)}, moments ${formatBytes(moments)}`;

function renderRole({ worldSize }: PlanSpec, simulated: RoleSimulation, spec: RoleSpec): string[] {
  const { role, microBatches, simulation } = simulated;
  const { state, groups } = simulation;
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
    `${role}: ${spec.strategy} over ${worldSize} ranks in ${spec.dtype}; ${step} of ${microBatches} ` +
      `micro-batch${microBatches === 1 ? '' : 'es'} per ${spec.ulysses === 1 ? 'rank' : `${spec.ulysses} ranks (ulysses)`}`,
    `one rank holds: ${stateOf(state)}`,
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
      ['collective', 'of', 'number', 'bytes each', 'bytes in all'],
      ...totals.map(({ phase, name, subject, count, bytes }) => [
        `${phase}: ${name}`,
        subject,
        String(count),
        formatBytes(Math.round(bytes / count)),
        formatBytes(bytes),
      ]),
      ['together', '', String(sum(({ count }) => count)), '', formatBytes(sum(({ bytes }) => bytes))],
    ]),
    'bytes that one rank sends',
  ];
}
