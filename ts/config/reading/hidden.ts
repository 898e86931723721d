// Values that come from the environment of the process may be secrets: a configuration that is shown or written down has their
// references instead.
import { isTree, type Tree } from './tree';

/** A value that the environment has a part in, or that would be a reference if it were written as it is. */
export interface Hidden {
  /** Keys from the root; names may contain dots. */
  path: readonly string[];
  /** As it is written in the file, with its references. */
  source: unknown;
}

/** A value that stands somewhere else than it was given, or also there. */
export interface Carried {
  from: string;
  to: string;
}

/**
 * `tree` with the sources of what is `hidden` in their places. `moved`: keys that were given under other names; `copied`: keys that
 * took the value of another one, both as resolve() did it.
 */
export function hide(
  tree: Tree,
  hidden: readonly Hidden[],
  { moved, copied }: { moved: readonly Carried[]; copied: readonly Carried[] },
): Tree {
  const shown = copyOf(tree) as Tree;
  const places = hidden.flatMap(({ path, source }) => {
    const here = moved.map((move) => carried(path, move)).find((found) => found !== null) ?? path;
    const copies = copied.map((copy) => carried(here, copy)).filter((found) => found !== null);
    return [here, ...copies].map((place) => ({ place, source }));
  });
  for (const { place, source } of places) replace(shown, place, source);
  return shown;
}

/** Where what stands at `path` has gone with a key; null: it has not. */
function carried(path: readonly string[], { from, to }: Carried): readonly string[] | null {
  const keys = from.split('.');
  return keys.every((key, i) => path[i] === key) ? [...to.split('.'), ...path.slice(keys.length)] : null;
}

/** Only what is there: keys without a meaning leave nothing behind. */
function replace(tree: Tree, path: readonly string[], value: unknown): void {
  let node: unknown = tree;
  for (const key of path.slice(0, -1))
    node = isTree(node) && Object.hasOwn(node, key) ? node[key] : undefined;
  const last = path.at(-1) as string;
  if (isTree(node) && Object.hasOwn(node, last)) node[last] = copyOf(value);
}

function copyOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(copyOf);
  if (!isTree(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, copyOf(item)]));
}
