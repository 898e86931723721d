// What a configuration asks of each rank.
import { availableParallelism } from 'node:os';
import {
  type ResolvedConfig,
  type ResolvedSftConfig,
  resolveConfig,
  resolveSftConfig,
} from '../config/config';
import { type PoolName, poolSizes, rewardRanks } from '../config/derived/pools';
import { needsCritic, needsReference, needsRewardModel } from '../config/derived/roles';
import { generatesInTraining } from '../config/derived/rollout_place';
import { routerReplay } from '../config/derived/router_replay';
import { routerZLossCoef } from '../config/derived/router_z_loss';
import { sequenceBounds } from '../config/derived/sequence_bounds';
import { configTree, readConfig } from '../config/reading/read';
import { getPath, isSftTree } from '../config/reading/tree';
import { checkDecoding } from '../roles/check_decoding';
import { checkImages } from '../roles/check_images';
import { checkSizes } from '../roles/check_sizes';
import { decideImages } from '../roles/images_of_data';
import { runRoles } from '../roles/model_roles';
import {
  actorSettings,
  criticSettings,
  type RoleName,
  type RoleSettings,
  referenceSettings,
  sftSettings,
} from '../roles/role_settings';
import { checkRouterKeys } from '../roles/router_keys';
import { teacherTokens } from '../roles/settings';
import { teacherSettings } from '../roles/teacher_settings';
import { askedRanks } from './asked_ranks';
import type { ControllerSpec } from './controller_memory';
import { controllerNotes, controllerSpec, preparesLoss } from './controller_request';
import type { EngineMemory } from './engine_memory';
import { imageNotes } from './image_notes';
import type { Placement } from './placement';
import { type Load, type PlanSpec, planMemory, type RoleSpec } from './plan';
import { rewardModelRole } from './reward_model_role';
import { loadPerRank, roleSpec, sharingRanks, type Target } from './role_parts';
import { rolloutRole, rolloutShapes } from './rollout_role';

export interface PlanRequest {
  file: string;
  overrides: readonly string[];
  /** Ranks of all pools; null: as the configuration says. */
  gpus: number | null;
  /** Bytes per rank; null: not known. */
  memory: number | null;
}

export interface ConfiguredPlan {
  /** The pool of the policy, and those of the rollout and of the reward model where they have one. */
  pools: readonly [PlanSpec, ...PlanSpec[]];
  program: 'train' | 'sft';
  /** The process that drives the workers; null: it holds next to nothing, in fine-tuning. */
  controller: { spec: ControllerSpec; notes: string[] } | null;
  /** Said to the user beside the numbers. */
  notes: string[];
}

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
  const note = (line: string): void => void notes.push(line);
  const ranks = askedRanks(tree, gpus);
  // What this version can start, and where, is not the question here.
  const asked = [...overrides, ...ranks.overrides, 'trainer.device=cpu'];
  if (isSftTree(tree)) {
    const config = await decideImages(resolveSftConfig(source, asked), note);
    checkRouterKeys(config);
    const pool = planSft(config, { device, worldSize: ranks.policy, memory });
    notes.push(...imageNotes([pool]));
    return { program: 'sft', notes, pools: [pool], controller: null };
  }
  const config = await decideImages(resolveConfig(source, asked), note);
  const roles = runRoles(config);
  checkImages(config, roles);
  checkRouterKeys(config);
  checkSizes(config, roles);
  const target = { device, memory: memory ?? config.trainer.memory_per_rank } as const;
  const pools = await planPools(config, target, engines);
  notes.push(...imageNotes(pools));
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
  const pixels = config.data.mm_processor_kwargs;
  const { policy, ...others } = poolSizes(config);
  const all = policy + Object.values(others).reduce((sum, ranks) => sum + ranks, 0);
  const pool = (name: PoolName, worldSize: number, roles: RoleSpec[]): PlanSpec => ({
    ...(all === policy ? {} : { pool: { name, otherRanks: all - worldSize } }),
    device,
    memory,
    threads,
    worldSize,
    roles,
  });
  const roles = policyRoles(config, { device, pixels, worldSize: policy }, memory);
  const model = needsRewardModel(config)
    ? [rewardModelRole(config, { device, worldSize: rewardRanks(config) })]
    : [];
  const { rollout, reward } = others;
  const ofPolicy = pool('policy', policy, reward === undefined ? [...roles, ...model] : roles);
  return [
    await chooseReductions(config, ofPolicy, engines),
    ...(rollout === undefined
      ? []
      : [pool('rollout', rollout, [rolloutRole(config, { device, pixels, worldSize: rollout }, memory)])]),
    ...(reward === undefined ? [] : [pool('reward', reward, model)]),
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

/** All that share the workers of the policy in any case. */
function policyRoles(config: ResolvedConfig, target: Target, memory: number | null): RoleSpec[] {
  const { data, actor_rollout_ref: roles, critic } = config;
  const { actor, rollout } = roles;
  const bounds = sequenceBounds(config);
  const perRank = (prompts: number, role: RoleSettings): Load =>
    loadPerRank({ prompts, samples: rollout.n }, sharingRanks(role), bounds, target);
  /** A call has all mini-batches, but with a loss that is prepared for each. */
  const update = (mini: number, role: RoleSettings, stepwise: boolean): Load => {
    const load = perRank(mini, role);
    return stepwise ? load : { ...load, sent: perRank(data.train_batch_size, role).sequences };
  };
  const distilled = config.distillation.enabled ? { teacherTokens: teacherTokens(config) } : {};
  const replay = routerReplay(config);
  const routing = { disabled: 'none', R2: 'recorded', R3: 'given' } as const;
  const settings = actorSettings(config);
  const spec = roleSpec(settings, target);
  const generates = generatesInTraining(config);
  if (generates) checkDecoding(config, spec.model);
  const found: RoleSpec[] = [
    {
      ...spec,
      ...distilled,
      routing: routing[replay],
      routerLosses: { balance: actor.router_aux_loss_coef !== 0, z: routerZLossCoef(actor) !== 0 },
      inference: perRank(data.train_batch_size, settings),
      update: update(actor.ppo_mini_batch_size, settings, preparesLoss(config)),
      rollouts: generates ? rolloutShapes(config, settings, target, memory) : [],
    },
  ];
  const reference = needsReference(config) ? referenceSettings(config) : null;
  if (reference !== null) {
    const inference = perRank(data.train_batch_size, reference);
    found.push({ ...roleSpec(reference, target), inference });
  }
  for (const teacher of teacherSettings(config))
    found.push({
      ...roleSpec(teacher, target),
      ...distilled,
      inference: perRank(data.train_batch_size, teacher),
    });
  if (needsCritic(config)) {
    const value = criticSettings(config);
    found.push({
      ...roleSpec(value, target),
      inference: perRank(data.train_batch_size, value),
      update: update(critic.ppo_mini_batch_size, value, false),
      routerLosses: { balance: false, z: routerZLossCoef(critic) !== 0 },
    });
  }
  return found;
}

function sftRole(config: ResolvedSftConfig, target: Target): RoleSpec {
  const { data } = config;
  const settings = sftSettings(config);
  const load = {
    sequences: Math.ceil((data.train_batch_size * sharingRanks(settings)) / target.worldSize),
    longest: data.max_length,
    response: data.max_length - 1,
    prompt: data.max_length - 1,
  };
  return {
    ...roleSpec(settings, { ...target, pixels: data.mm_processor_kwargs }),
    routerLosses: { balance: false, z: (config.model.router_z_loss_coef ?? 0) !== 0 },
    update: load,
  };
}
