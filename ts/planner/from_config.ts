// What a configuration asks of each rank.
import { availableParallelism } from 'node:os';
import {
  type ResolvedConfig,
  type ResolvedSftConfig,
  resolveConfig,
  resolveSftConfig,
} from '../config/config';
import { hasRewardPool, policyRanks, rewardRanks } from '../config/derived/pools';
import { needsCritic, needsReference, needsRewardModel } from '../config/derived/roles';
import { decodingRanks } from '../config/derived/rollout_place';
import { configTree, readConfig } from '../config/reading/read';
import { getPath, isSftTree } from '../config/reading/tree';
import { checkDecoding } from '../roles/check_decoding';
import {
  actorSettings,
  criticSettings,
  type RoleName,
  type RoleSettings,
  referenceSettings,
  sftSettings,
} from '../roles/role_settings';
import { askedRanks } from './asked_ranks';
import type { ControllerSpec } from './controller_memory';
import { controllerNotes, controllerSpec } from './controller_request';
import type { EngineMemory } from './engine_memory';
import type { Placement } from './placement';
import { type Load, type PlanSpec, planMemory, type RoleSpec } from './plan';
import { rewardModelRole } from './reward_model_role';
import { loadPerRank, roleSpec, sharingRanks, type Target } from './role_parts';

export interface PlanRequest {
  file: string;
  overrides: readonly string[];
  /** Ranks of all pools; null: as the configuration says. */
  gpus: number | null;
  /** Bytes per rank; null: not known. */
  memory: number | null;
}

export interface ConfiguredPlan {
  /** The pool of the policy, and that of the reward model where it has one. */
  pools: readonly [PlanSpec, ...PlanSpec[]];
  program: 'train' | 'sft';
  /** The process that drives the workers; null: it holds next to nothing, in fine-tuning. */
  controller: { spec: ControllerSpec; notes: string[] } | null;
  /** Said to the user beside the numbers. */
  notes: string[];
}

/** Sequences in a validation batch that is not limited: as many as decode at the same time. */
const ALL_PROMPTS = 256;

/**
 * Reads a configuration and the shapes of its models; no weight is read.
 * @throws ConfigError as loadConfig, or for a model directory without config.json; TroupeError INVALID_MODEL
 */
export async function configuredPlan(
  { file, overrides, gpus, memory }: PlanRequest,
  engines: EngineMemory,
): Promise<ConfiguredPlan> {
  const source = readConfig(file);
  const tree = configTree(source, overrides);
  const given = getPath(tree, 'trainer.device');
  const device = given === 'cpu' ? 'cpu' : 'cuda';
  const notes =
    given === undefined || given === 'auto'
      ? [`trainer.device is ${given ?? 'not given'}: planned for cuda`]
      : [];
  const ranks = askedRanks(tree, gpus);
  // What this version can start, and where, is not the question here.
  const asked = [...overrides, ...ranks.overrides, 'trainer.device=cpu'];
  if (isSftTree(tree)) {
    const config = resolveSftConfig(source, asked);
    const pool = planSft(config, { device, worldSize: ranks.policy, memory });
    return { program: 'sft', notes, pools: [pool], controller: null };
  }
  const config = resolveConfig(source, asked);
  const target = { device, memory: memory ?? config.trainer.memory_per_rank } as const;
  const pools = await planPools(config, target, engines);
  const controller = { spec: controllerSpec(config, pools[0]), notes: controllerNotes(config) };
  return { program: 'train', notes, pools, controller };
}

/** What a configuration of `troupe sft` asks of each rank. */
export function planSft(
  config: ResolvedSftConfig,
  common: Pick<PlanSpec, 'device' | 'worldSize' | 'memory'>,
): PlanSpec {
  const threads = config.trainer.num_threads ?? availableParallelism();
  return { ...common, threads, roles: [sftRole(config, common)] };
}

/** What a configuration asks of each rank of each pool, that of the policy first. */
export async function planPools(
  config: ResolvedConfig,
  { device, memory }: Pick<PlanSpec, 'device' | 'memory'>,
  engines: EngineMemory,
): Promise<[PlanSpec, ...PlanSpec[]]> {
  const threads = config.trainer.num_threads ?? availableParallelism();
  const [policy, reward] = [policyRanks(config), rewardRanks(config)];
  const common = { device, memory, threads };
  const roles = policyRoles(config, { device, worldSize: policy }, memory);
  const model = needsRewardModel(config) ? [rewardModelRole(config, { device, worldSize: reward })] : [];
  const chosen = (spec: PlanSpec): Promise<PlanSpec> => chooseReductions(config, spec, engines);
  if (!hasRewardPool(config))
    return [await chosen({ ...common, worldSize: policy, roles: [...roles, ...model] })];
  return [
    await chosen({ ...common, worldSize: policy, pool: { name: 'policy', otherRanks: reward }, roles }),
    { ...common, worldSize: reward, pool: { name: 'reward', otherRanks: policy }, roles: model },
  ];
}

/**
 * gradient_reduction auto becomes mini_batch, actor before critic, where everything fits into the memory with it; micro_batch when it
 * does not, or when the memory is not known.
 */
async function chooseReductions(
  config: ResolvedConfig,
  spec: PlanSpec,
  engines: EngineMemory,
): Promise<PlanSpec> {
  const asked: readonly (readonly [RoleName, string])[] = [
    ['actor', config.actor_rollout_ref.actor.fsdp_config.gradient_reduction],
    ['critic', config.critic.model.fsdp_config.gradient_reduction],
  ];
  let chosen = spec;
  for (const [name, reduction] of asked) {
    if (reduction !== 'auto' || spec.memory === null) continue;
    if (!spec.roles.some((role) => role.name === name)) continue;
    const once = withReduction(chosen, name, 'mini_batch');
    if ((await planMemory(once, engines)).fits === true) chosen = once;
  }
  return chosen;
}

/** The same with another way of summing the gradients of one role. */
function withReduction(spec: PlanSpec, name: RoleName, reduction: Placement['reduction']): PlanSpec {
  const roles = spec.roles.map((role) =>
    role.name === name ? { ...role, placement: { ...role.placement, reduction } } : role,
  );
  return { ...spec, roles };
}

/** Of a CPU's memory, for keys and values: native/rollout/cache_budget.cc. */
const HOST_SHARE = 0.25;
/** The cache takes more where there is room, and never what others hold: so much makes no run too large. */
const ENOUGH_CACHE = 4 * 2 ** 30;

/** All but the reward model. */
function policyRoles(config: ResolvedConfig, target: Target, memory: number | null): RoleSpec[] {
  const { data, actor_rollout_ref: roles, critic } = config;
  const { actor, rollout } = roles;
  const perRank = (prompts: number, role: RoleSettings): Load =>
    loadPerRank(prompts * rollout.n, sharingRanks(role), data, target);
  const share = rollout.gpu_memory_utilization * (target.device === 'cpu' ? HOST_SHARE : 1);
  const shape = {
    promptLength: data.max_prompt_length,
    responseLength: data.max_response_length,
    maxSequences: rollout.max_num_seqs,
    maxStepTokens: rollout.max_num_batched_tokens,
    tensorParallel: decodingRanks(config),
    quantization: rollout.quantization,
    kvCacheBytes: Math.min(ENOUGH_CACHE, memory === null ? ENOUGH_CACHE : Math.floor(share * memory)),
  };
  const settings = actorSettings(config);
  // Ranks that share the model, or its experts, generate together.
  const together =
    settings.layout.tp * settings.layout.pp * (settings.layout.ep ?? 1) * decodingRanks(config);
  const prompts = (count: number): number => Math.ceil((count * together) / target.worldSize);
  const spec = roleSpec(settings, target);
  checkDecoding(config, spec.model);
  const found: RoleSpec[] = [
    {
      ...spec,
      inference: perRank(data.train_batch_size, settings),
      update: perRank(actor.ppo_mini_batch_size, settings),
      rollouts: [
        { verb: 'generate', prompts: prompts(data.gen_batch_size), n: rollout.n, ...shape },
        ...(data.val_files === null
          ? []
          : [
              {
                verb: 'validate' as const,
                prompts: prompts(data.val_batch_size ?? ALL_PROMPTS * target.worldSize),
                ...(data.val_batch_size === null ? { fixed: true as const } : {}),
                n: rollout.val_kwargs.n,
                ...shape,
              },
            ]),
      ],
    },
  ];
  const reference = needsReference(config) ? referenceSettings(config) : null;
  if (reference !== null) {
    const inference = perRank(data.train_batch_size, reference);
    found.push({ ...roleSpec(reference, target), inference });
  }
  if (needsCritic(config)) {
    const value = criticSettings(config);
    found.push({
      ...roleSpec(value, target),
      inference: perRank(data.train_batch_size, value),
      update: perRank(critic.ppo_mini_batch_size, value),
    });
  }
  return found;
}

function sftRole(config: ResolvedSftConfig, target: Target): RoleSpec {
  const { data } = config;
  const settings = sftSettings(config);
  const load = {
    sequences: Math.ceil((data.train_batch_size * settings.ulysses) / target.worldSize),
    longest: data.max_length,
    response: data.max_length - 1,
  };
  return { ...roleSpec(settings, target), update: load };
}
