import { mostSlips, slips } from '../../base/nearest_name';
import { isLeaf, leafAt, type Section, sectionAt } from '../schema/field';

/** Every dotted path of a schema, sections included. */
export function* paths(schema: Section, prefix = ''): Generator<string> {
  for (const [key, entry] of Object.entries(schema)) {
    yield prefix + key;
    if (!isLeaf(entry)) yield* paths(entry, `${prefix}${key}.`);
  }
}

/**
 * The valid path most like an unknown key: a sibling with a similar name, or else a key below or elsewhere with (nearly) the same name.
 * null when nothing is near.
 */
export function nearestPath(root: Section, siblings: Section, prefix: string, key: string): string | null {
  const most = mostSlips(key);
  if (most < 0) return null;
  // The right name in the wrong place is the other common slip. There are hundreds of names elsewhere, and one that is merely similar means
  // nothing.
  const mostElsewhere = Math.floor(key.length / 5);
  const near: { path: string; count: number }[] = [];
  const consider = (path: string, name: string, further: number, limit: number): void => {
    const count = slips(key, name);
    if (count <= limit) near.push({ path, count: count + further });
  };
  for (const name of Object.keys(siblings)) consider(prefix + name, name, 0, most);
  for (const path of paths(root)) {
    const below = prefix !== '' && path.startsWith(prefix);
    const name = path.slice(path.lastIndexOf('.') + 1);
    consider(path, name, below ? 0.25 : 0.5, mostElsewhere);
  }
  near.sort((a, b) => a.count - b.count);
  return near[0]?.path ?? null;
}

/** Where the dots of one key are those of a path from `section` on: that path as YAML has it, in braces. Else null. */
export function asSections(section: Section, key: string): string | null {
  const names = key.split('.');
  if (names.length < 2) return null;
  if (leafAt(section, key) === null && sectionAt(section, key) === null) return null;
  const [first, ...others] = names;
  return `${first}: ${others.map((name) => `{ ${name}: `).join('')}...${' }'.repeat(others.length)}`;
}
