// What completions go on from, and other lists of token ids: a body has room for millions, and a schema for each takes seconds.
import { z } from 'zod';

const MOST_PROMPTS = 256;
const LARGEST_ID = 2 ** 31 - 1;

type Path = (string | number)[];

/** Where the first entry is that is no token id; -1: nowhere. */
const firstWrong = (ids: readonly unknown[]): number =>
  ids.findIndex((id) => !(Number.isInteger(id) && (id as number) >= 0 && (id as number) <= LARGEST_ID));

/** A list of token ids, read up to the first entry that is none. */
export const tokenIds = z.unknown().transform((given, { issues }): number[] => {
  const refuse = (message: string, path: Path = []): never => {
    issues.push({ code: 'custom', message, path, input: given });
    return z.NEVER;
  };
  if (!Array.isArray(given)) return refuse('expected a list of token ids');
  const wrong = firstWrong(given);
  return wrong < 0 ? given : refuse('expected a token id', [wrong]);
});

/** A text, token ids, or several of either: as a list of them. */
export const prompts = z.unknown().transform((given, { issues }): (string | number[])[] => {
  const refuse = (message: string, path: Path = []): never => {
    issues.push({ code: 'custom', message, path, input: given });
    return z.NEVER;
  };
  const other = (path: Path = []): never => refuse('expected a text, token ids, or a list of either', path);
  if (typeof given === 'string') return [given];
  if (!Array.isArray(given) || given.length === 0) return other();
  const isIds = typeof given[0] === 'number';
  const all: unknown[] = isIds ? [given] : given;
  if (all.length > MOST_PROMPTS) return refuse(`expected at most ${MOST_PROMPTS} prompts, got ${all.length}`);
  for (const [i, one] of all.entries()) {
    const path = isIds ? [] : [i];
    if (typeof one !== typeof all[0] || (typeof one !== 'string' && !Array.isArray(one))) return other(path);
    if (typeof one === 'string') continue;
    if (one.length === 0) return other(path);
    const wrong = firstWrong(one);
    if (wrong >= 0) return refuse('expected a token id', [...path, wrong]);
  }
  return all as (string | number[])[];
});
