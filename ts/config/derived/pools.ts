// Which workers a role runs on: those of the policy, or for generation and for the reward model a pool of its own, as verl's resource pools.
import { ConfigError } from '../../errors';
import type { ConfigNote } from '../reading/resolve';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { rewardModelKeys } from '../schema/reward_model_section';
import type { ResolvedSftConfig } from '../schema/sft_schema';
import { needsRewardModel } from './roles';

const REWARD = 'reward.reward_model';
const SWITCH = `${REWARD}.enable_resource_pool`;
const ROLLOUT = 'actor_rollout_ref.rollout';
/** The keys whose product is {@link policyRanks}, for messages. */
export const POLICY_KEYS = 'trainer.nnodes x trainer.n_gpus_per_node';

/** Of actor, reference and critic; of generation and of the reward model, where they do not share theirs. */
export type PoolName = 'policy' | 'rollout' | 'reward';

/** Workers of actor, reference and critic, and of what has no pool of its own. */
export function policyRanks({ trainer }: { trainer: { nnodes: number; n_gpus_per_node: number } }): number {
  return trainer.nnodes * trainer.n_gpus_per_node;
}

/** Whether the reward model runs in workers of its own. */
export function hasRewardPool(config: ResolvedConfig): boolean {
  return needsRewardModel(config) && config.reward.reward_model.enable_resource_pool;
}

/** Workers that the reward model runs on. */
export function rewardRanks(config: ResolvedConfig): number {
  const { nnodes, n_gpus_per_node: perNode } = config.reward.reward_model;
  return hasRewardPool(config) ? nnodes * perNode : policyRanks(config);
}

/** Whether our own engine generates in workers of its own. */
export function hasRolloutPool({ actor_rollout_ref: { rollout } }: ResolvedConfig): boolean {
  return rollout.nnodes > 0;
}

/** The section whose nnodes and n_gpus_per_node say where our own engine generates. */
const placeOf = ({ trainer, actor_rollout_ref: { rollout } }: ResolvedConfig) =>
  rollout.nnodes === 0 ? trainer : rollout;

/** Workers that our own engine generates in. */
export function rolloutRanks(config: ResolvedConfig): number {
  const { nnodes, n_gpus_per_node: perNode } = placeOf(config);
  return nnodes * perNode;
}

/** Of these, on each of several machines; null: there is one. */
export function rolloutRanksPerMachine(config: ResolvedConfig): number | null {
  const { nnodes, n_gpus_per_node: perNode } = placeOf(config);
  return nnodes > 1 ? perNode : null;
}

/** Workers of each pool of a run, that of the policy first. */
export function poolSizes(config: ResolvedConfig): { policy: number; rollout?: number; reward?: number } {
  return {
    policy: policyRanks(config),
    ...(hasRolloutPool(config) ? { rollout: rolloutRanks(config) } : {}),
    ...(hasRewardPool(config) ? { reward: rewardRanks(config) } : {}),
  };
}

/** Hosts that each pool is spread over. */
export function poolHosts(config: ResolvedConfig): Readonly<Record<PoolName, number>> {
  return {
    policy: config.trainer.nnodes,
    rollout: config.actor_rollout_ref.rollout.nnodes,
    reward: config.reward.reward_model.nnodes,
  };
}

/** The keys whose product is {@link rewardRanks}, for messages. */
export function rewardRanksKeys(config: ResolvedConfig): string {
  return hasRewardPool(config) ? `${REWARD}.nnodes x ${REWARD}.n_gpus_per_node` : POLICY_KEYS;
}

/** The keys whose product is {@link rolloutRanks}, for messages. */
export function rolloutRanksKeys(config: ResolvedConfig): string {
  return hasRolloutPool(config) ? `${ROLLOUT}.nnodes x ${ROLLOUT}.n_gpus_per_node` : POLICY_KEYS;
}

function refuse(key: string, message: string): never {
  throw new ConfigError(`${key}: ${message}`, key);
}

/** @throws ConfigError for a pool that has no workers, or more than this version can start */
export function checkRewardPool(config: ResolvedConfig): void {
  if (!hasRewardPool(config)) return;
  const { nnodes, n_gpus_per_node: perNode } = config.reward.reward_model;
  const most = config.trainer.nnodes;
  if (nnodes < 1 || nnodes > most) {
    const why =
      nnodes === 0
        ? `0 (the default) leaves ${SWITCH} without a machine`
        : 'a pool lies on the machines of the run (trainer.nnodes)';
    const expected = most === 1 ? '1' : `1 to ${most}`;
    refuse(`${REWARD}.nnodes`, `expected ${expected} because ${SWITCH} is true, got ${nnodes}: ${why}`);
  }
  if (perNode < 1)
    refuse(`${REWARD}.n_gpus_per_node`, `expected an integer >= 1 because ${SWITCH} is true, got ${perNode}`);
}

/** @throws ConfigError for a pool beside servers, or on machines that the run does not have */
export function checkRolloutPool(config: ResolvedConfig): void {
  if (!hasRolloutPool(config)) return;
  const { nnodes, mode } = config.actor_rollout_ref.rollout;
  const most = config.trainer.nnodes;
  if (mode === 'server' || mode === 'managed')
    refuse(
      `${ROLLOUT}.nnodes`,
      `${nnodes} asks for workers that generate with our own engine, but mode is ${mode}, with which servers do: set one of them back (nnodes=0, mode=async)`,
    );
  if (nnodes > most)
    refuse(
      `${ROLLOUT}.nnodes`,
      `expected ${most === 1 ? '0 or 1' : `0 to ${most}`}, got ${nnodes}: a pool lies on the machines of the run, beside its other workers: ` +
        'count those that generate in trainer.nnodes, and share their GPUs by trainer.n_gpus_per_node and this n_gpus_per_node',
    );
}

type Sizes = ReturnType<typeof poolSizes>;

/** Workers of each pool on the first machine, which has some of all. */
function onFirstMachine(config: ResolvedConfig | ResolvedSftConfig): Sizes {
  if (!('actor_rollout_ref' in config)) return { policy: config.trainer.n_gpus_per_node };
  const hosts = poolHosts(config);
  const each = Object.entries(poolSizes(config)).map(([name, ranks]) => [
    name,
    ranks / hosts[name as PoolName],
  ]);
  return Object.fromEntries(each) as Sizes;
}

/** Workers of all pools on the machine that has most. */
export function workersPerMachine(config: ResolvedConfig | ResolvedSftConfig): number {
  const { policy, rollout = 0, reward = 0 } = onFirstMachine(config);
  return policy + rollout + reward;
}

/**
 * @param gpus that the machines have together, as many each, where engines run on them; null: not known, or not needed
 * @throws ConfigError when the workers of all pools on one are more
 */
export function checkGpus(config: ResolvedConfig | ResolvedSftConfig, gpus: number | null): void {
  if (gpus === null) return;
  const { nnodes } = config.trainer;
  const offered = gpus / nnodes;
  if (workersPerMachine(config) <= offered) return;
  const { policy, rollout = 0, reward = 0 } = onFirstMachine(config);
  const asked = [
    `${policy}${rollout + reward === 0 ? '' : ' of the policy'}`,
    ...(rollout === 0 ? [] : [`${rollout} of the rollout`]),
    ...(reward === 0 ? [] : [`${reward} of the reward model`]),
  ];
  const all = `${asked.slice(0, -1).join(', ')}${asked.length > 1 ? ' and ' : ''}${asked.at(-1)}`;
  const remedies = [
    ...(rollout === 0 ? [] : [`with ${ROLLOUT}.nnodes=0 the workers of the policy generate`]),
    ...(reward === 0 ? [] : [`without ${SWITCH} the reward model shares those of the policy`]),
  ];
  const key =
    reward > 0 ? `${REWARD}.n_gpus_per_node` : `${rollout > 0 ? ROLLOUT : 'trainer'}.n_gpus_per_node`;
  refuse(
    key,
    `expected one GPU per worker, but ${nnodes === 1 ? 'this' : 'a'} machine offers ${offered}, and ${nnodes === 1 ? 'there' : 'on the first one'} are ${all}: ` +
      (remedies.length === 0 ? 'use fewer workers, or trainer.device=cpu' : remedies.join('; ')),
  );
}

/** Keys of pools that are not asked for, where they say anything but their defaults. */
export function poolNotes(config: ResolvedConfig): ConfigNote[] {
  return [...rewardPoolNotes(config), ...rolloutPoolNotes(config)];
}

function rewardPoolNotes(config: ResolvedConfig): ConfigNote[] {
  if (hasRewardPool(config)) return [];
  const keys = config.reward.reward_model;
  const without = keys.enable_resource_pool ? `${REWARD}.enable` : SWITCH;
  return (['enable_resource_pool', 'n_gpus_per_node', 'nnodes'] as const)
    .filter((key) => keys[key] !== rewardModelKeys[key].value)
    .map((key) => ({ path: `${REWARD}.${key}`, reason: `has no effect without ${without}=true` }));
}

function rolloutPoolNotes(config: ResolvedConfig): ConfigNote[] {
  const { rollout } = config.actor_rollout_ref;
  if (hasRolloutPool(config) || rollout.n_gpus_per_node === config.trainer.n_gpus_per_node) return [];
  return [{ path: `${ROLLOUT}.n_gpus_per_node`, reason: `has no effect without ${ROLLOUT}.nnodes` }];
}
