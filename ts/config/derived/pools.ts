// Which workers a role runs on: those of the policy, or for the reward model a pool of its own, as verl's resource pools.
import { ConfigError } from '../../errors';
import type { ConfigNote } from '../reading/resolve';
import type { ResolvedConfig } from '../schema/ppo_schema';
import { rewardModelKeys } from '../schema/reward_model_section';
import type { ResolvedSftConfig } from '../schema/sft_schema';
import { needsRewardModel } from './roles';

const SECTION = 'reward.reward_model';
const SWITCH = `${SECTION}.enable_resource_pool`;

/** Workers of actor, reference and critic, and of the reward model unless it has a pool of its own. */
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

/** GPUs of a machine that workers have. */
export function gpusOfWorkers(config: ResolvedConfig): number {
  const reward = hasRewardPool(config) ? config.reward.reward_model.n_gpus_per_node : 0;
  return config.trainer.n_gpus_per_node + reward;
}

/** Hosts that each pool is spread over. */
export function poolHosts(config: ResolvedConfig): { policy: number; reward: number } {
  return { policy: config.trainer.nnodes, reward: config.reward.reward_model.nnodes };
}

/** The keys whose product is {@link rewardRanks}, for messages. */
export function rewardRanksKeys(config: ResolvedConfig): string {
  const section = hasRewardPool(config) ? SECTION : 'trainer';
  return `${section}.nnodes x ${section}.n_gpus_per_node`;
}

/** @throws ConfigError for a pool that has no workers, or more than this version can start */
export function checkRewardPool(config: ResolvedConfig): void {
  if (!hasRewardPool(config)) return;
  const { nnodes, n_gpus_per_node: perNode } = config.reward.reward_model;
  const refuse = (key: string, message: string): never => {
    throw new ConfigError(`${SECTION}.${key}: ${message}`, `${SECTION}.${key}`);
  };
  const most = config.trainer.nnodes;
  if (nnodes < 1 || nnodes > most) {
    const why =
      nnodes === 0
        ? `0 (the default) leaves ${SWITCH} without a machine`
        : 'a pool lies on the machines of the run (trainer.nnodes)';
    const expected = most === 1 ? '1' : `1 to ${most}`;
    refuse('nnodes', `expected ${expected} because ${SWITCH} is true, got ${nnodes}: ${why}`);
  }
  if (perNode < 1)
    refuse('n_gpus_per_node', `expected an integer >= 1 because ${SWITCH} is true, got ${perNode}`);
}

/**
 * @param gpus that this machine has, where engines run on them; null: not known, or not needed
 * @throws ConfigError when the workers of all pools are more
 */
export function checkGpus(config: ResolvedConfig | ResolvedSftConfig, gpus: number | null): void {
  if (gpus === null) return;
  const policy = policyRanks(config);
  const reward = 'actor_rollout_ref' in config && hasRewardPool(config) ? rewardRanks(config) : 0;
  if (policy + reward <= gpus) return;
  const key = reward === 0 ? 'trainer.n_gpus_per_node' : `${SECTION}.n_gpus_per_node`;
  const asked = reward === 0 ? `${policy}` : `${policy} of the policy and ${reward} of the reward model`;
  throw new ConfigError(
    `${key}: expected one GPU per worker, but this machine offers ${gpus}, and there are ${asked}` +
      (reward === 0
        ? ': use fewer workers, or trainer.device=cpu'
        : `: without ${SWITCH} the reward model shares those of the policy`),
    key,
  );
}

/** Keys of a pool that is not asked for, where they say anything but their defaults. */
export function poolNotes(config: ResolvedConfig): ConfigNote[] {
  if (hasRewardPool(config)) return [];
  const keys = config.reward.reward_model;
  const without = keys.enable_resource_pool ? `${SECTION}.enable` : SWITCH;
  return (['enable_resource_pool', 'n_gpus_per_node', 'nnodes'] as const)
    .filter((key) => keys[key] !== rewardModelKeys[key].value)
    .map((key) => ({ path: `${SECTION}.${key}`, reason: `has no effect without ${without}=true` }));
}
