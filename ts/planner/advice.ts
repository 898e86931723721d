import { DECODING_RANKS } from '../config/derived/rollout_place';
import { tensorProblem } from '../model/tensor_parts';
import type { EngineMemory } from './engine_memory';
import type { Placement } from './placement';
import { rowParts } from './places';
import { type Load, type Plan, type PlanSpec, planMemory, type RoleSpec } from './plan';

/** A change of the configuration that takes less memory. */
export interface Knob {
  /** As it is typed: "key=value", or "--gpus 16". */
  change: string;
  /** Bytes by which the peak of a rank sinks. */
  saves: number;
  /** Whether it is enough by itself. */
  fits: boolean;
}

export interface Advice {
  knobs: Knob[];
  /** All of them but leaving out the reference, with as few GPUs as that takes; null when that helps nothing. */
  together: Knob | null;
}

interface Change {
  text: string;
  spec: PlanSpec;
}

const MOST_GPUS = 1024;
/** Ranks that are advised to decode together: those of a usual machine, because they wait for each other in every layer. */
const MOST_DECODING = 8;
/** Steps in which a capacity is tried: rows of the tiles that a CPU computes in (kRowTile of native/base/parallel.h). */
const ROW_TILE = 128;

/** The placement that takes least. */
const ON_HOST: Omit<Placement, 'reduceDtype'> = {
  offload: { parameters: true, gradients: true, moments: true },
  prefetch: false,
  reduction: 'micro_batch',
};

/** What would make a plan that does not fit take less, the largest saving first; those that suffice before the others. */
export async function advise(spec: PlanSpec, plan: Plan, engines: EngineMemory): Promise<Advice> {
  const knob = async ({ text, spec: changed }: Change): Promise<Knob> => {
    const { peak, fits } = await planMemory(changed, engines);
    return { change: text, saves: plan.peak.total - peak.total, fits: fits === true };
  };
  const changes = [
    ...checkpointing(spec),
    ...activationOffload(spec),
    ...(await capacities(spec, engines)),
    ...halfPrecision(spec),
    ...narrowMasters(spec),
    ...sharding(spec),
    ...placements(spec),
    ...(await decoding(spec, engines)),
    ...latentCaches(spec),
    ...noReference(spec),
  ];
  const all = changes.length < 2 ? null : await knob(await together(spec, engines));
  const knobs: Knob[] = [];
  for (const change of [...changes, ...(await moreGpus(spec, engines))]) knobs.push(await knob(change));
  return {
    knobs: knobs
      .filter(({ saves }) => saves > 0)
      .sort((a, b) => Number(b.fits) - Number(a.fits) || b.saves - a.saves),
    together: all !== null && all.saves > 0 ? all : null,
  };
}

const withRoles = (spec: PlanSpec, change: (role: RoleSpec) => RoleSpec): PlanSpec => ({
  ...spec,
  roles: spec.roles.map(change),
});

const distinct = <T>(items: readonly T[]): T[] => [...new Set(items)];

function checkpointing(spec: PlanSpec): Change[] {
  const off = (role: RoleSpec): boolean => role.update !== null && !role.gradientCheckpointing;
  const keys = spec.roles.filter(off).map((role) => role.keys.gradientCheckpointing as string);
  return distinct(keys).map((key) => ({
    text: key,
    spec: withRoles(spec, (role) =>
      role.keys.gradientCheckpointing === key ? { ...role, gradientCheckpointing: true } : role,
    ),
  }));
}

/** What is kept of recomputed blocks to the host of a GPU. */
function activationOffload(spec: PlanSpec): Change[] {
  if (spec.device !== 'cuda') return [];
  const onDevice = (role: RoleSpec): boolean => role.gradientCheckpointing && !role.activationOffload;
  const keys = spec.roles.filter(onDevice).map((role) => role.keys.activationOffload as string);
  return distinct(keys).map((key) => ({
    text: key,
    spec: withRoles(spec, (role) =>
      role.keys.activationOffload === key ? { ...role, activationOffload: true } : role,
    ),
  }));
}

/** The largest capacity that fits, in steps of whole row tiles; else the smallest that holds a sequence. */
async function capacities(spec: PlanSpec, engines: EngineMemory): Promise<Change[]> {
  const changes: Change[] = [];
  for (const key of distinct(spec.roles.map((role) => role.keys.capacity))) {
    const sharing = spec.roles.filter((role) => role.keys.capacity === key && packs(role));
    if (sharing.length === 0) continue;
    const { capacity, uncounted = 0 } = sharing[0] as RoleSpec;
    const least = Math.min(capacity, Math.max(...sharing.map(leastCapacity)));
    if (least === capacity) continue;
    const at = (tokens: number): Change => ({
      text: `${key}=${tokens - uncounted}`,
      spec: withRoles(spec, (role) => (role.keys.capacity === key ? { ...role, capacity: tokens } : role)),
    });
    let best = least;
    let [low, high] = [Math.ceil(least / ROW_TILE), Math.floor(capacity / ROW_TILE)];
    while (low <= high) {
      const tiles = Math.floor((low + high) / 2);
      if ((await planMemory(at(tiles * ROW_TILE).spec, engines)).fits === true) {
        best = Math.max(best, tiles * ROW_TILE);
        low = tiles + 1;
      } else {
        high = tiles - 1;
      }
    }
    changes.push(at(best));
  }
  return changes;
}

/** Whether it has micro-batches: one that only generates has none. */
const packs = ({ inference, update }: RoleSpec): boolean => inference !== null || update !== null;

/** That holds the longest sequence, of whose tokens each rank that shares it has a part. */
function leastCapacity(role: RoleSpec): number {
  const longest = Math.max(role.inference?.longest ?? 0, role.update?.longest ?? 0);
  return Math.ceil(longest / (rowParts(role) * ROW_TILE)) * ROW_TILE;
}

function halfPrecision(spec: PlanSpec): Change[] {
  const wide = spec.roles.filter((role) => role.dtype === 'float32').map((role) => role.keys.dtype);
  return distinct(wide).map((key) => ({
    text: `${key}=bfloat16`,
    spec: withRoles(spec, (role) => (role.keys.dtype === key ? { ...role, dtype: 'bfloat16' } : role)),
  }));
}

/** Masters and moments in bfloat16, of what FSDP trains; of adapters there is little to save. */
const canNarrow = (role: RoleSpec): boolean =>
  role.update !== null &&
  role.lora === undefined &&
  !isMegatron(role) &&
  role.masterDtype === 'float32' &&
  role.muon === undefined;

const narrowed = (role: RoleSpec): RoleSpec =>
  canNarrow(role) ? { ...role, dtype: 'bfloat16', masterDtype: 'bfloat16' } : role;

function narrowMasters(spec: PlanSpec): Change[] {
  return spec.roles.filter(canNarrow).map(({ name, keys, dtype }) => ({
    text: `${keys.sharding}.model_dtype=bfloat16${dtype === 'float32' ? ` ${keys.dtype}=bfloat16` : ''}`,
    spec: withRoles(spec, (role) => {
      if (role.name === name) return narrowed(role);
      return role.keys.dtype === keys.dtype ? { ...role, dtype: 'bfloat16' } : role;
    }),
  }));
}

function sharding(spec: PlanSpec): Change[] {
  if (spec.worldSize === 1) return [];
  const others = spec.roles.filter((role) => role.strategy !== 'full_shard');
  return distinct(others.map((role) => role.keys.sharding)).map((key) => {
    const first = others.find((role) => role.keys.sharding === key) as RoleSpec;
    const [setting, whole] = isMegatron(first)
      ? ['use_distributed_optimizer=true', 'use_megatron_fsdp=true']
      : ['fsdp_size=-1', 'reshard_after_forward=true'];
    return {
      text: `${key}.${first.strategy === 'no_shard' ? setting : whole}`,
      spec: withRoles(spec, (role) =>
        role.keys.sharding === key ? { ...role, strategy: moreSharded(role) } : role,
      ),
    };
  });
}

const isMegatron = ({ keys }: RoleSpec): boolean => keys.sharding === keys.layout;

/** What one key makes of it: those of Megatron shard step by step. */
const moreSharded = (role: RoleSpec): RoleSpec['strategy'] =>
  isMegatron(role) && role.strategy === 'no_shard' ? 'shard_grad_op' : 'full_shard';

/** State to the host, one part of one role at a time; gradients that are not kept whole; no gathering ahead. */
function placements(spec: PlanSpec): Change[] {
  return spec.roles.flatMap((role): Change[] => {
    const { keys, placement, update } = role;
    const { offload } = placement;
    if (keys.placement === null) return [];
    const changeKey = (text: string, changed: Partial<Placement>): Change => ({
      text,
      spec: withRoles(spec, (other) =>
        other === role ? { ...role, placement: { ...placement, ...changed } } : other,
      ),
    });
    const change = (setting: string, changed: Partial<Placement>): Change =>
      changeKey(`${keys.placement}.${setting}`, changed);
    const learns = update !== null;
    return [
      ...(learns && !offload.moments
        ? [change('optimizer_offload=true', { offload: { ...offload, moments: true } })]
        : []),
      ...(learns && !offload.gradients
        ? [change('grad_offload=true', { offload: { ...offload, gradients: true } })]
        : []),
      ...(offload.parameters
        ? []
        : [change('param_offload=true', { offload: { ...offload, parameters: true } })]),
      ...(placement.reduction === 'mini_batch'
        ? [changeKey(`${keys.reduction}=micro_batch`, { reduction: 'micro_batch' })]
        : []),
      ...(placement.prefetch ? [change('forward_prefetch=false', { prefetch: false })] : []),
    ];
  });
}

/** More ranks that decode together: the fewest with which the plan fits, else as many as may be. */
async function decoding(spec: PlanSpec, engines: EngineMemory): Promise<Change[]> {
  const role = spec.roles.find(({ rollouts }) => rollouts.length > 0);
  if (role === undefined) return [];
  const changes = decodingCounts(spec, role).map((ranks) => ({
    text: `${DECODING_RANKS}=${ranks}`,
    spec: withRoles(spec, (other) => (other === role ? decodingTogether(role, ranks) : other)),
  }));
  for (const change of changes) if ((await planMemory(change.spec, engines)).fits === true) return [change];
  return changes.slice(-1);
}

/** How many ranks more than now could decode together. Under Megatron generation is laid out as training. */
function decodingCounts({ worldSize }: PlanSpec, role: RoleSpec): number[] {
  const now = role.rollouts[0]?.tensorParallel;
  if (now === undefined || isMegatron(role)) return [];
  const counts: number[] = [];
  for (let ranks = 2 * now; ranks <= MOST_DECODING && worldSize % ranks === 0; ranks *= 2)
    if (tensorProblem(ranks, role.model) === null) counts.push(ranks);
  return counts;
}

const decodingTogether = (role: RoleSpec, ranks: number): RoleSpec => ({
  ...role,
  rollouts: role.rollouts.map((shape) => ({
    ...shape,
    tensorParallel: ranks,
    prompts: (shape.prompts * ranks) / shape.tensorParallel,
  })),
});

/** Latents in the place of keys and values. */
function latentCaches(spec: PlanSpec): Change[] {
  const keeps = ({ model, rollouts }: RoleSpec): boolean =>
    model.latent !== null && rollouts.some(({ latentCache }) => !latentCache);
  if (!spec.roles.some(keeps)) return [];
  return [
    {
      text: 'actor_rollout_ref.rollout.latent_cache=true',
      spec: withRoles(spec, (role) =>
        keeps(role)
          ? { ...role, rollouts: role.rollouts.map((shape) => ({ ...shape, latentCache: true })) }
          : role,
      ),
    },
  ];
}

/** Without a KL term there is no reference model. */
function noReference(spec: PlanSpec): Change[] {
  const roles = spec.roles.filter((role) => role.name !== 'reference');
  if (roles.length === spec.roles.length) return [];
  return [
    {
      text: 'actor_rollout_ref.actor.use_kl_loss=false algorithm.use_kl_in_reward=false (no reference model)',
      spec: { ...spec, roles },
    },
  ];
}

/** Powers of two times as many GPUs: the first number that fits, else the largest. */
async function moreGpus(spec: PlanSpec, engines: EngineMemory): Promise<Change[]> {
  const count = (await enoughGpus(spec, engines)) ?? gpuCounts(spec).at(-1);
  if (count === undefined || count === spec.worldSize) return [];
  return [{ text: ranksText(spec, count), spec: onRanks(spec, count) }];
}

/** The same work on a multiple of its ranks, of which each has a smaller part. */
function onRanks(spec: PlanSpec, worldSize: number): PlanSpec {
  const part = (count: number): number => Math.ceil((count * spec.worldSize) / worldSize);
  const load = (whole: Load | null): Load | null =>
    whole === null
      ? null
      : {
          ...whole,
          sequences: part(whole.sequences),
          ...(whole.sent === undefined ? {} : { sent: part(whole.sent) }),
        };
  const roles = spec.roles.map(
    (role): RoleSpec => ({
      ...role,
      inference: load(role.inference),
      update: load(role.update),
      rollouts: role.rollouts.map((shape) =>
        shape.fixed ? shape : { ...shape, prompts: part(shape.prompts) },
      ),
    }),
  );
  return { ...spec, worldSize, roles };
}

const RANKS_KEYS = {
  rollout: 'actor_rollout_ref.rollout.n_gpus_per_node',
  reward: 'reward.reward_model.n_gpus_per_node',
};

/** As it is typed for so many ranks of this pool; the others stay as they are. */
function ranksText({ pool }: PlanSpec, count: number): string {
  if (pool === undefined) return `--gpus ${count}`;
  const gpus = `--gpus ${count + pool.otherRanks}`;
  return pool.name === 'policy' ? gpus : `${gpus} ${RANKS_KEYS[pool.name]}=${count}`;
}

function gpuCounts({ worldSize }: PlanSpec): number[] {
  const counts = [worldSize];
  for (let n = 2 * worldSize; n <= MOST_GPUS; n *= 2) counts.push(n);
  return counts;
}

async function enoughGpus(spec: PlanSpec, engines: EngineMemory): Promise<number | undefined> {
  for (const worldSize of gpuCounts(spec)) {
    if ((await planMemory(onRanks(spec, worldSize), engines)).fits === true) return worldSize;
  }
  return undefined;
}

/** The reference is part of the algorithm: it stays. */
async function together(spec: PlanSpec, engines: EngineMemory): Promise<Change> {
  const decoded = (role: RoleSpec): RoleSpec => {
    const ranks = decodingCounts(spec, role).at(-1);
    return ranks === undefined ? role : decodingTogether(role, ranks);
  };
  const roles = spec.roles.map(
    (role): RoleSpec => ({
      ...narrowed(decoded(role)),
      gradientCheckpointing: role.update !== null,
      activationOffload: role.update !== null && spec.device === 'cuda',
      dtype: 'bfloat16',
      strategy: 'full_shard',
      placement: role.keys.placement === null ? role.placement : { ...role.placement, ...ON_HOST },
      capacity: packs(role) ? Math.min(role.capacity, leastCapacity(role)) : role.capacity,
    }),
  );
  const worldSize = (await enoughGpus({ ...spec, roles }, engines)) ?? spec.worldSize;
  const gpus = worldSize === spec.worldSize ? '' : `, ${ranksText(spec, worldSize)}`;
  const all = noReference(spec).length === 0 ? 'all of these' : 'all of these but the reference';
  return { text: `${all}${gpus}`, spec: onRanks({ ...spec, roles }, worldSize) };
}
