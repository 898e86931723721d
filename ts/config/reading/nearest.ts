import { editDistance } from '../../base/text';
import { isLeaf, leafAt, type Section, sectionAt } from '../schema/field';

/** No name is so long, and comparing takes the product of the lengths. */
const LONGEST = 200;

/** A third of the letters may differ, or two; but not all of them. */
const isNear = (given: string, distance: number): boolean =>
  distance < given.length && distance <= Math.max(2, Math.floor(given.length / 3));

/** Every dotted path of a schema, sections included. */
export function* paths(schema: Section, prefix = ''): Generator<string> {
  for (const [key, entry] of Object.entries(schema)) {
    yield prefix + key;
    if (!isLeaf(entry)) yield* paths(entry, `${prefix}${key}.`);
  }
}

/**
 * The valid path most like an unknown key: a sibling with a similar name, or else a key below or elsewhere with (nearly) the same name.
 * null when nothing is close.
 */
export function nearestPath(root: Section, siblings: Section, prefix: string, key: string): string | null {
  if (key.length > LONGEST) return null;
  const ranked = Object.keys(siblings).map((name) => ({
    path: prefix + name,
    distance: editDistance(key, name),
  }));
  for (const path of paths(root)) {
    const distance = editDistance(key, path.slice(path.lastIndexOf('.') + 1));
    // The right name in the wrong place is the other common slip; a similar one counts a little less further down, and less again elsewhere.
    const below = prefix !== '' && path.startsWith(prefix);
    ranked.push({ path, distance: distance + (below ? 0.25 : 0.5) });
  }
  ranked.sort((a, b) => a.distance - b.distance);
  const best = ranked[0];
  return best && isNear(key, best.distance) ? best.path : null;
}

/** Where the dots of one key are those of a path from `section` on: that path as YAML has it, in braces. Else null. */
export function asSections(section: Section, key: string): string | null {
  const names = key.split('.');
  if (names.length < 2) return null;
  if (leafAt(section, key) === null && sectionAt(section, key) === null) return null;
  const [first, ...others] = names;
  return `${first}: ${others.map((name) => `{ ${name}: `).join('')}...${' }'.repeat(others.length)}`;
}

/** The name most like `given`; null when none is close. */
export function nearestName(names: readonly string[], given: string): string | null {
  if (given.length > LONGEST) return null;
  const ranked = names.map((name) => ({ name, distance: editDistance(given, name) }));
  ranked.sort((a, b) => a.distance - b.distance);
  const best = ranked[0];
  return best && isNear(given, best.distance) ? best.name : null;
}
