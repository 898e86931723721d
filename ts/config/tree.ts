// Plain trees of mappings, addressed by dotted paths.

export type Tree = Record<string, unknown>;

export const isTree = (value: unknown): value is Tree =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export function getPath(tree: unknown, path: string): unknown {
  return path
    .split('.')
    .reduce<unknown>((node, key) => (isTree(node) && Object.hasOwn(node, key) ? node[key] : undefined), tree);
}

/** Sets a value, making the sections above it. Returns null, or the path of a value that is there instead of a section. */
export function setPath(tree: Tree, path: string, value: unknown): string | null {
  const keys = path.split('.');
  let node = tree;
  for (const [depth, key] of keys.slice(0, -1).entries()) {
    node[key] ??= {};
    const next = node[key];
    if (!isTree(next)) return keys.slice(0, depth + 1).join('.');
    node = next;
  }
  node[keys.at(-1) as string] = value;
  return null;
}
