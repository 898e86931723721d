import { formatBytes } from '../base/byte_size';
import { unusedScalesNote } from '../checkpoint/fp8';
import { isPacked, type PackedDtype } from '../checkpoint/packed_tensor';
import type { Advice, Knob } from './advice';
import { weightFile } from './engine_request';
import type { Place } from './places';
import type { Plan, PlanSpec, RoleSpec, StateBytes } from './plan';

/** Columns of equal width, the first to the left and the others to the right. */
export function table(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, c) => Math.max(...rows.map((row) => (row[c] ?? '').length)));
  return rows.map((row) =>
    row
      .map((cell, c) => (c === 0 ? cell.padEnd(widths[c] as number) : cell.padStart(widths[c] as number)))
      .join('  ')
      .trimEnd(),
  );
}

/** "6.74 B" parameters. */
export function formatCount(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(2)} B`;
  return count >= 1e6 ? `${(count / 1e6).toFixed(2)} M` : String(count);
}

/** The ranks of every pool, where there are several. */
export function renderPools(pools: readonly PlanSpec[]): string[] {
  if (pools.length === 1) return [];
  const all = pools.reduce((sum, { worldSize }) => sum + worldSize, 0);
  const each = pools.map(({ worldSize, pool }) => `${worldSize} in pool ${pool?.name}`);
  return [`${all} ranks: ${each.join(', ')}`, ''];
}

/** What `troupe plan` prints of one pool. */
export function renderPlan(spec: PlanSpec, plan: Plan): string[] {
  const of = spec.memory === null ? '' : `, ${formatBytes(spec.memory)} each`;
  const bytesOf = ({ parameters, gradients, optimizer }: StateBytes): string[] =>
    [parameters, gradients, optimizer].map(formatBytes);
  const onHost = plan.roles.filter(({ host }) => totalOf(host) > 0);
  const states = plan.roles.map(({ role, count, ...state }, i) => {
    const { dtype, masterDtype, strategy, update } = spec.roles[i] as RoleSpec;
    const kept = update !== null && masterDtype === 'bfloat16' ? `${dtype}, masters too` : dtype;
    const sharding =
      spec.worldSize === 1 ? '-' : [strategy, ...layoutTexts(spec.roles[i] as RoleSpec)].join(', ');
    return [role, formatCount(count), kept, sharding, ...bytesOf(state)];
  });
  const withBatch = plan.phases.some(({ memory }) => memory.batch > 0);
  const phases = plan.phases.map(({ role, verb, instant, memory, total }) => [
    `${role}: ${verb}`,
    instant,
    ...[
      memory.gathered,
      memory.activations,
      memory.head,
      memory.kvCache,
      ...(withBatch ? [memory.batch] : []),
      total,
    ].map(formatBytes),
  ]);
  const { peak } = plan;
  const resident = peak.memory.parameters + peak.memory.gradients + peak.memory.optimizer;
  return [
    `${spec.pool === undefined ? '' : `pool ${spec.pool.name}: `}${spec.worldSize} ${spec.worldSize === 1 ? 'rank' : 'ranks'} on ${spec.device}${of}; bytes of ${plan.ranks.length === 1 ? 'one rank' : placeText(spec, plan)}`,
    '',
    ...table([
      ['held throughout', 'model', 'dtype', 'sharding', 'parameters', 'gradients', 'optimiser'],
      ...states,
      ...onHost.map(({ role, host }) => [`${role}, on the host`, '', '', '', ...bytesOf(host)]),
    ]),
    ...(onHost.length > 0 && spec.device === 'cpu'
      ? ['on a CPU the host is the same memory: offloading saves nothing']
      : []),
    `together ${formatBytes(resident)}, and ${formatBytes(peak.memory.process)} for the process`,
    ...plan.roles.flatMap(({ count }, i) => packedText(spec.roles[i] as RoleSpec, count)),
    '',
    ...table([
      [
        'phase',
        'peak at',
        'gathered',
        'activations',
        'head',
        'KV cache',
        ...(withBatch ? ['batch'] : []),
        'with all held',
      ],
      ...phases,
    ]),
    '',
    `peak: ${formatBytes(peak.total)} in ${peak.verb} of the ${peak.role} (${peak.instant})${verdict(plan)}`,
    ...otherRanks(spec, plan),
  ];
}

const PACKED: Readonly<Record<PackedDtype, string>> = {
  MXFP4: 'experts in MXFP4',
  F8_E4M3: 'matrices in FP8',
};

/** Packed files are far smaller than what they become. */
function packedText(role: RoleSpec, count: number): string[] {
  const dtypes = new Set([...(role.stored?.values() ?? [])].filter(isPacked).map(({ dtype }) => dtype));
  if (dtypes.size === 0) return [];
  const [files, loaded] = [weightFile(role).size, count * (role.dtype === 'float32' ? 4 : 2)].map(
    formatBytes,
  );
  const what = [...dtypes].map((dtype) => PACKED[dtype]).join(' and ');
  const unused = unusedScalesNote(role.unusedScales ?? []);
  return [
    `${role.name}: ${files} in its files, with ${what}; ${loaded} in ${role.dtype}, over all ranks`,
    ...(unused === null ? [] : [`${role.name}: ${unused}`]),
  ];
}

/** What ranks share beside the state. */
export function layoutTexts({ ulysses, layout: { parallel, pipeline } }: RoleSpec): string[] {
  const { tp, cp, ep, sequenceParallel } = parallel;
  return [
    ...(ulysses === 1 ? [] : [`ulysses ${ulysses}`]),
    ...(tp === 1 ? [] : [`tp ${tp}${sequenceParallel ? ' sequence parallel' : ''}`]),
    ...(cp === 1 ? [] : [`cp ${cp}`]),
    ...(ep === 1 ? [] : [`ep ${ep}`]),
    ...(pipeline.stages === 1
      ? []
      : [`pp ${pipeline.stages}${pipeline.chunks === 1 ? '' : ` x ${pipeline.chunks}`}`]),
  ];
}

/** "rank 8 (stage 1 of 4)", or with the stage of each role where they differ. */
function placeText({ roles }: PlanSpec, { rank, stages }: Place): string {
  const texts = roles.flatMap(({ name, layout }, i) =>
    layout.pipeline.stages === 1 ? [] : [{ name, text: `stage ${stages[i]} of ${layout.pipeline.stages}` }],
  );
  const same = texts.every(({ text }) => text === texts[0]?.text);
  const place = same ? [texts[0]?.text] : texts.map(({ name, text }) => `${text} of the ${name}`);
  return `rank ${rank} (${place.join(', ')})`;
}

/** Stages that are planned beside the one that holds most. */
function otherRanks(spec: PlanSpec, { rank, ranks }: Plan): string[] {
  return ranks
    .filter((other) => other.rank !== rank)
    .map(
      (other) =>
        `  ${placeText(spec, other)}: ${formatBytes(other.peak.total)} in ${other.peak.verb} of the ${other.peak.role}`,
    );
}

const totalOf = ({ parameters, gradients, optimizer }: StateBytes): number =>
  parameters + gradients + optimizer;

function verdict({ peak, memory, fits }: Plan): string {
  if (memory === null) return '';
  const share = `${((100 * peak.total) / memory).toFixed(0)} % of ${formatBytes(memory)}`;
  if (fits !== true) return `, ${share}: does not fit`;
  return `, ${share}: fits${peak.total > 0.9 * memory ? ', with less than 10 % to spare' : ''}`;
}

export function renderAdvice({ knobs, together }: Advice): string[] {
  if (knobs.length === 0) return ['nothing that this configuration leaves open would take less'];
  const rows = [...knobs, ...(together === null ? [] : [together])].map((knob) => [
    knob.change,
    `saves ${formatBytes(knob.saves)}`,
    outcome(knob),
  ]);
  return ['what would help, each by itself:', ...table(rows).map((line) => `  ${line}`)];
}

const outcome = ({ fits }: Knob): string => (fits ? 'fits' : 'not enough');
