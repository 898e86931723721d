import { getPath, setPath, type Tree } from './tree';

// Names that may look like numbers: 20240501, 1e5, 007. They stay as they are spelled.

const NAMES = [
  'trainer.project_name',
  'trainer.experiment_name',
  'logging.wandb.project',
  'logging.wandb.entity',
];

export const isName = (key: string): boolean => NAMES.includes(key);

/** @param spelled the same tree with every value as its text */
export function keepNames(tree: Tree, spelled: () => unknown): void {
  const numeric = NAMES.filter((key) => typeof getPath(tree, key) === 'number');
  if (numeric.length === 0) return;
  const texts = spelled();
  for (const key of numeric) setPath(tree, key, getPath(texts, key) ?? String(getPath(tree, key)));
}
