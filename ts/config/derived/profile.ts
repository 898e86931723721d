// Which steps of a run are profiled, on which workers, and what of them is recorded.
import { ConfigError } from '../../errors';
import type { ProfiledWork, ProfileOrder } from '../../worker/profiling';
import type { ConfigNote } from '../reading/resolve';
import { missing } from '../schema/field';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { PROFILE_CONTENTS, type PROFILING_TOOLS } from '../schema/profiler_section';
import type { ResolvedSftConfig } from '../schema/sft_schema';
import { type PoolName, poolSizes } from './pools';
import { needsCritic, needsReference } from './roles';
import { generatesInTraining } from './rollout_place';

/** Of the workers of a pool. */
export interface PoolProfile extends ProfileOrder {
  /** The roles in them, and what all their work is called, in names of files. */
  roles: string;
  scope: string;
  /** null: all. */
  ranks: readonly number[] | null;
}

export interface ProfilePlan {
  directory: string;
  profiles(step: number): boolean;
  /** Steps that follow one another go into one trace. */
  continuous: boolean;
  pools: Readonly<Partial<Record<PoolName, PoolProfile>>>;
}

type Tool = (typeof PROFILING_TOOLS)[number];
/** `profiler` of a role, as far as it counts here. */
type RoleProfiler = Pick<
  ResolvedConfig['critic']['profiler'],
  'tool' | 'enable' | 'all_ranks' | 'ranks' | 'tool_config' | 'finish_hook_cmd'
>;
interface ProfiledRole {
  section: string;
  keys: RoleProfiler;
  work: readonly ProfiledWork[];
}

const GLOBAL = 'global_profiler';
const INSTEAD: Readonly<Record<Exclude<Tool, 'torch'>, string>> = {
  nsys: 'Nsight Systems is not started here; torch records the kernels of a GPU, too',
  npu: 'it records Ascend hardware, which nothing here runs on',
  torch_memory:
    'its snapshots are made by Python; torch with contents [memory] records allocations, and troupe plan says what takes how much',
  precision_debugger: 'msprobe compares modules of PyTorch, and the core has none',
};

/** What of a run is profiled; null: nothing. */
export function profilePlan(config: ResolvedConfig): ProfilePlan | null {
  // Programs put configurations together from sections, and may leave this one out.
  if (config.global_profiler === undefined) return null;
  const { steps, save_path: directory, profile_continuous_steps: continuous } = config.global_profiler;
  const wanted = new Set(steps ?? []);
  const pools = Object.fromEntries(
    Object.keys(poolSizes(config)).flatMap((name) => {
      const pool = name as PoolName;
      const profile = poolProfile(rolesOf(config, pool), namesOf(config, pool));
      return profile === null ? [] : [[pool, profile]];
    }),
  );
  if (wanted.size === 0 || Object.keys(pools).length === 0) return null;
  return { directory, profiles: (step) => wanted.has(step), continuous, pools };
}

/** The same of `troupe sft`, whose steps follow one another. */
export function sftProfilePlan({ profiler, trainer }: ResolvedSftConfig): ProfilePlan | null {
  if (profiler === undefined) return null;
  const [first, last] = trainer.profile_interval;
  const policy = poolProfile([{ section: 'profiler', keys: profiler, work: ['actor'] }], 'actor');
  if (first < 0 || policy === null) return null;
  const profiles = (step: number): boolean => step >= first && step <= last;
  return { directory: profiler.save_path, profiles, continuous: true, pools: { policy } };
}

function rolesOf(config: ResolvedConfig, pool: PoolName): ProfiledRole[] {
  const { actor, ref, rollout } = config.actor_rollout_ref;
  const generating: ProfiledRole = {
    section: 'actor_rollout_ref.rollout.profiler',
    keys: rollout.profiler,
    work: ['generate'],
  };
  if (pool === 'rollout') return [generating];
  if (pool !== 'policy') return [];
  return [
    {
      section: 'actor_rollout_ref.actor.profiler',
      keys: actor.profiler,
      work: ['actor', 'ref', 'teacher'],
    },
    ...(generatesInTraining(config) ? [generating] : []),
    ...(needsReference(config)
      ? [{ section: 'actor_rollout_ref.ref.profiler', keys: ref.profiler, work: ['ref'] as const }]
      : []),
    ...(needsCritic(config)
      ? [{ section: 'critic.profiler', keys: config.critic.profiler, work: ['critic'] as const }]
      : []),
  ];
}

function namesOf(config: ResolvedConfig, pool: PoolName): string {
  if (pool !== 'policy') return pool;
  return [
    'actor',
    ...(generatesInTraining(config) ? ['rollout'] : []),
    ...(needsReference(config) ? ['ref'] : []),
    ...(needsCritic(config) ? ['critic'] : []),
  ].join('-');
}

/** One recording at a time in a process: of all that any of its roles asks for. */
function poolProfile(all: readonly ProfiledRole[], roles: string): PoolProfile | null {
  const enabled = all.filter(({ keys }) => keys.enable);
  if (enabled.length === 0) return null;
  const contents = enabled.map(({ keys }) => keys.tool_config.torch.contents ?? []);
  const some = (what: string): boolean => contents.some((own) => own.includes(what));
  const ranksOf = ({ ranks }: RoleProfiler): readonly number[] =>
    ranks !== null && ranks.length > 0 ? ranks : [0];
  return {
    roles,
    scope: roles === 'rollout' ? 'generate' : 'train',
    ranks: enabled.some(({ keys }) => keys.all_ranks)
      ? null
      : [...new Set(enabled.flatMap(({ keys }) => ranksOf(keys)))].sort((a, b) => a - b),
    cuda: some('cuda') || contents.some((own) => own.length === 0),
    shapes: some('shapes'),
    memory: some('memory'),
    pieces: enabled.every(({ keys }) => keys.tool_config.torch.discrete)
      ? [...new Set(enabled.flatMap(({ work }) => work))]
      : null,
  };
}

/** @throws ConfigError for what is asked of a profile and cannot be; never where no step or no role is profiled */
export function checkProfile(config: ResolvedConfig): void {
  const { steps, profile_continuous_steps: continuous } = config.global_profiler;
  if ((steps ?? []).length === 0) return;
  const sizes = poolSizes(config);
  for (const [pool, size] of Object.entries(sizes)) {
    for (const { section, keys } of rolesOf(config, pool as PoolName)) {
      checkRole(section, keys, size);
      const key = `${section}.tool_config.torch.discrete`;
      if (keys.enable && continuous && keys.tool_config.torch.discrete)
        throw new ConfigError(
          `${key}: expected false where ${GLOBAL}.profile_continuous_steps is true: a piece of work is one of one step`,
          key,
        );
    }
  }
}

/** Of steps in which no role is profiled, and of roles that are profiled in no step. */
export function profileNotes(config: ResolvedConfig): ConfigNote[] {
  // Programs put configurations together from sections, and may leave this one out.
  if (config.global_profiler === undefined) return [];
  const wanted = (config.global_profiler.steps ?? []).length > 0;
  const roles = Object.keys(poolSizes(config)).flatMap((name) => rolesOf(config, name as PoolName));
  const enabled = roles.filter(({ keys }) => keys.enable);
  const [first] = enabled;
  if (wanted === (first !== undefined)) return [];
  if (first !== undefined)
    return [{ path: `${first.section}.enable`, reason: `nothing is recorded without ${GLOBAL}.steps` }];
  const keys = roles.map(({ section }) => `${section}.enable`).join(', ');
  return [{ path: `${GLOBAL}.steps`, reason: `nothing is recorded, as no role is profiled: set ${keys}` }];
}

/** @throws ConfigError as {@link checkProfile} */
export function checkSftProfile({ profiler, trainer }: ResolvedSftConfig, ranks: number): void {
  if (trainer.profile_interval[0] >= 0) checkRole('profiler', profiler, ranks);
}

function checkTool(path: string, tool: Tool | null): void {
  if (tool === null || tool === 'torch') return;
  throw new ConfigError(
    `${path}: expected torch where steps are profiled, got "${tool}": ${INSTEAD[tool]}`,
    path,
  );
}

function checkRole(section: string, keys: RoleProfiler, workers: number): void {
  if (!keys.enable) return;
  checkTool(`${section}.tool`, keys.tool);
  const path = `${section}.tool_config.torch.contents`;
  for (const what of keys.tool_config.torch.contents ?? []) {
    if ((PROFILE_CONTENTS as readonly string[]).includes(what)) continue;
    const why =
      what === 'stack' ? ': there are no lines of Python to name, ranges name the parts of a model' : '';
    throw new ConfigError(
      `${path}: expected some of ${PROFILE_CONTENTS.join(', ')}, got "${what}"${why}`,
      path,
    );
  }
  const { profile_token_start, profile_token_end, schedule } = keys.tool_config.torch;
  const refused: [boolean, string, string][] = [
    [
      profile_token_start !== null,
      'tool_config.torch.profile_token_start',
      'a profile of some tokens of a response',
    ],
    [
      profile_token_end !== null,
      'tool_config.torch.profile_token_end',
      'a profile of some tokens of a response',
    ],
    [schedule.active > 0, 'tool_config.torch.schedule.active', 'a profile of some mini-batches of an update'],
    [keys.finish_hook_cmd !== null, 'finish_hook_cmd', 'a command that is run at the end of a profile'],
  ];
  for (const [given, key, feature] of refused)
    if (given) throw new ConfigError(`${section}.${key}: ${missing(feature)}`, `${section}.${key}`);
  const tooHigh = keys.ranks?.find((rank) => rank >= workers);
  if (tooHigh !== undefined && !keys.all_ranks)
    throw new ConfigError(
      `${section}.ranks: expected ranks below the number of workers (${workers}), got ${tooHigh}`,
      `${section}.ranks`,
    );
}
