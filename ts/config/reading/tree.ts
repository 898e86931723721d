// Plain trees of mappings, addressed by dotted paths.

export type Tree = Record<string, unknown>;

export const isTree = (value: unknown): value is Tree =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export function getPath(tree: unknown, path: string): unknown {
  return path
    .split('.')
    .reduce<unknown>((node, key) => (isTree(node) && Object.hasOwn(node, key) ? node[key] : undefined), tree);
}

/** Also for a key such as __proto__, which plain assignment would not make an entry of the tree. */
function define(tree: Tree, key: string, value: unknown): void {
  Object.defineProperty(tree, key, { value, enumerable: true, writable: true, configurable: true });
}

/** Removes a value. Returns whether it was there. */
export function deletePath(tree: Tree, path: string): boolean {
  const keys = path.split('.');
  const last = keys.pop() as string;
  const parent = keys.length === 0 ? tree : getPath(tree, keys.join('.'));
  if (!isTree(parent) || !Object.hasOwn(parent, last)) return false;
  delete parent[last];
  return true;
}

/** Sets a value, making the sections above it. Returns null, or the path of a value that is there instead of a section. */
export function setPath(tree: Tree, path: string, value: unknown): string | null {
  const keys = path.split('.');
  let node = tree;
  for (const [depth, key] of keys.slice(0, -1).entries()) {
    if (!Object.hasOwn(node, key) || node[key] === null || node[key] === undefined) define(node, key, {});
    const next = node[key];
    if (!isTree(next)) return keys.slice(0, depth + 1).join('.');
    node = next;
  }
  define(node, keys.at(-1) as string, value);
  return null;
}

/** As {@link setPath}, but a section joins one that is there. */
export function mergePath(tree: Tree, path: string, value: unknown): string | null {
  const there = getPath(tree, path);
  if (!isTree(value) || !isTree(there)) return setPath(tree, path, structuredClone(value));
  mergeInto(there, structuredClone(value));
  return null;
}

/** Sections are joined, all else is replaced. */
export function mergeInto(target: Tree, values: Tree): void {
  for (const [key, value] of Object.entries(values)) {
    const there = Object.hasOwn(target, key) ? target[key] : undefined;
    if (isTree(there) && isTree(value)) mergeInto(there, value);
    else define(target, key, value);
  }
}

/** Dotted paths of all values that are not sections, in order. */
export function leafPaths(tree: Tree, prefix = ''): string[] {
  return Object.entries(tree).flatMap(([key, value]) =>
    isTree(value) ? leafPaths(value, `${prefix}${key}.`) : [prefix + key],
  );
}

/** Whether a configuration is one of verl's (or our) SFT trainers: a top-level model, and no actor_rollout_ref. */
export const isSftTree = (tree: Tree): boolean => 'model' in tree && !('actor_rollout_ref' in tree);
