import { getPath, type Tree } from '../config/reading/tree';
import { ConfigError } from '../errors';

/** Ranks of each pool. */
export interface AskedRanks {
  policy: number;
  /** 0: the reward model has no pool of its own. */
  reward: number;
  /** That put as many ranks on one machine, which is all that a configuration may ask for. */
  overrides: string[];
}

/** Where verl's releases keep the keys of the reward model. */
const SECTIONS = ['reward.reward_model', 'reward_model'];

/**
 * What a configuration asks for, before anything of it is checked; `gpus`: ranks of all pools instead, of which the policy gets what
 * the reward model leaves.
 * @throws ConfigError when it leaves none
 */
export function askedRanks(tree: Tree, gpus: number | null): AskedRanks {
  const trainer = ['trainer'];
  const reward = hasRewardPool(tree)
    ? count(tree, SECTIONS, 'nnodes', 0) * count(tree, SECTIONS, 'n_gpus_per_node', 8)
    : 0;
  const policy =
    gpus === null
      ? count(tree, trainer, 'nnodes', 1) * count(tree, trainer, 'n_gpus_per_node', 1)
      : gpus - reward;
  if (policy < 1) {
    const key = 'reward.reward_model.n_gpus_per_node';
    throw new ConfigError(
      `--gpus ${gpus}: expected more than the ${reward} that the reward model's own pool takes (${key} x nnodes), because the ` +
        'policy gets the rest',
      key,
    );
  }
  const overrides = ['trainer.nnodes=1', `trainer.n_gpus_per_node=${policy}`];
  if (reward > 0) {
    const machines = given(tree, 'nnodes');
    const sizes = given(tree, 'n_gpus_per_node');
    overrides.push(
      ...machines.map((section) => `${section}.nnodes=1`),
      ...(sizes.length > 0 ? sizes : machines).map((section) => `${section}.n_gpus_per_node=${reward}`),
    );
  }
  return { policy, reward, overrides };
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
