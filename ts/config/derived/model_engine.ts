// verl's model_engine, which chooses the files that a configuration is composed of.
import { getPath, isTree, setPath, type Tree } from '../reading/tree';

/** The strategies that verl's files for an engine bring with them. A reward model has its own. */
const STRATEGIES = ['actor_rollout_ref.actor', 'critic'];

/**
 * The tree with strategy megatron for actor and critic where `model_engine` is megatron, as verl composes it; a strategy that is given holds. Other trees,
 * also wrong ones, come back as they are: the schema judges them.
 */
export function adoptModelEngine(tree: Tree): Tree {
  if (tree['model_engine'] !== 'megatron') return tree;
  const adopted = structuredClone(tree);
  for (const section of STRATEGIES) {
    const given = getPath(adopted, section) ?? {};
    if (isTree(given) && (given['strategy'] ?? null) === null)
      setPath(adopted, `${section}.strategy`, 'megatron');
  }
  return adopted;
}
