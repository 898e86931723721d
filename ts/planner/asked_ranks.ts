import { getPath, type Tree } from '../config/reading/tree';
import { ConfigError } from '../errors';

/** Ranks of each pool. */
export interface AskedRanks {
  policy: number;
  /** 0: generation has no pool of its own. */
  rollout: number;
  /** 0: the reward model has no pool of its own. */
  reward: number;
  /** That put as many ranks on one machine, which is all that a configuration may ask for. */
  overrides: string[];
}

/** Where verl's releases keep the keys of the reward model. */
const SECTIONS = ['reward.reward_model', 'reward_model'];
const ROLLOUT = 'actor_rollout_ref.rollout';

/**
 * What a configuration asks for, before anything of it is checked; `gpus`: ranks of all pools instead, of which the policy gets what
 * the others leave.
 * @throws ConfigError when it leaves none
 */
export function askedRanks(tree: Tree, gpus: number | null): AskedRanks {
  const trainer = ['trainer'];
  const reward = hasRewardPool(tree)
    ? count(tree, SECTIONS, 'nnodes', 0) * count(tree, SECTIONS, 'n_gpus_per_node', 8)
    : 0;
  const perMachine = count(tree, trainer, 'n_gpus_per_node', 1);
  const rollout = count(tree, [ROLLOUT], 'nnodes', 0) * count(tree, [ROLLOUT], 'n_gpus_per_node', perMachine);
  const policy = gpus === null ? count(tree, trainer, 'nnodes', 1) * perMachine : gpus - rollout - reward;
  if (policy < 1) throw noneLeft(gpus, rollout, reward);
  const overrides = ['trainer.nnodes=1', `trainer.n_gpus_per_node=${policy}`];
  if (rollout > 0) overrides.push(`${ROLLOUT}.nnodes=1`, `${ROLLOUT}.n_gpus_per_node=${rollout}`);
  if (reward > 0) {
    const machines = given(tree, 'nnodes');
    const sizes = given(tree, 'n_gpus_per_node');
    overrides.push(
      ...machines.map((section) => `${section}.nnodes=1`),
      ...(sizes.length > 0 ? sizes : machines).map((section) => `${section}.n_gpus_per_node=${reward}`),
    );
  }
  return { policy, rollout, reward, overrides };
}

function noneLeft(gpus: number | null, rollout: number, reward: number): ConfigError {
  const rewardKey = 'reward.reward_model.n_gpus_per_node';
  const takers = [
    ...(rollout === 0
      ? []
      : [`${rollout} that the rollout's own pool takes (${ROLLOUT}.n_gpus_per_node x nnodes)`]),
    ...(reward === 0 ? [] : [`${reward} that the reward model's own pool takes (${rewardKey} x nnodes)`]),
  ];
  return new ConfigError(
    `--gpus ${gpus}: expected more than the ${takers.join(' and the ')}, because the policy gets the rest`,
    reward > 0 ? rewardKey : `${ROLLOUT}.n_gpus_per_node`,
  );
}

const given = (tree: Tree, key: string): string[] =>
  SECTIONS.filter((section) => (getPath(tree, `${section}.${key}`) ?? null) !== null);

const hasRewardPool = (tree: Tree): boolean =>
  ['enable', 'enable_resource_pool'].every((key) =>
    SECTIONS.some((section) => getPath(tree, `${section}.${key}`) === true),
  );

/** A value that is none is told when the configuration is checked. */
function count(tree: Tree, sections: readonly string[], key: string, otherwise: number): number {
  const values = sections.map((section) => getPath(tree, `${section}.${key}`));
  const value = values.find((found) => typeof found === 'number' && Number.isInteger(found) && found > 0);
  return typeof value === 'number' ? value : otherwise;
}
