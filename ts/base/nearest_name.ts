// What somebody may have meant by a name that does not exist.
import { printable } from './printable';
import { editDistance } from './text';

/** No name is so long, and comparing takes the product of the lengths. */
const LONGEST = 200;

/** Letters in which two names differ; two neighbours that were exchanged, the commonest slip, count once. */
export function slips(given: string, name: string): number {
  const distance = editDistance(given, name);
  return distance === 2 && letters(given) === letters(name) ? 1 : distance;
}

const letters = (name: string): string => [...name.toLowerCase()].sort().join('');

/** Slips that a name of this length may hold and still be known again: one of few letters is soon like any other. */
export function mostSlips(given: string): number {
  if (given.length > LONGEST) return -1;
  if (given.length < 5) return Math.min(1, given.length - 1);
  return Math.max(2, Math.floor(0.4 * given.length));
}

/** The name most like `given`; null when none is near. */
export function nearestName(names: readonly string[], given: string): string | null {
  const most = mostSlips(given);
  if (most < 0) return null;
  let best: { name: string; count: number } | null = null;
  for (const name of names) {
    // A name that was cut off is missing more letters than one that was mistyped.
    const begins = given.length > 2 && name.toLowerCase().startsWith(given.toLowerCase());
    const count = begins ? Math.min(most, slips(given, name)) : slips(given, name);
    if (count <= most && (best === null || count < best.count)) best = { name, count };
  }
  return best?.name ?? null;
}

/** What to say about a name that is none of `known`, of which users may add some by calling `register`. */
export function unknownName(known: readonly string[], name: string, register: string): string {
  const nearest = nearestName(known, name);
  const hint = nearest === null ? '' : `; did you mean ${nearest}?`;
  return (
    `expected one of ${known.join(', ')}, got "${printable(name)}"${hint} (${register} adds your own: in a file of ` +
    'actor_rollout_ref.model.external_lib, or before the configuration is loaded)'
  );
}
