import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** Token -> id, as a tokenizer.json lists them; null: not in this form. */
function vocabulary(definition: Buffer): Map<string, number> | null {
  try {
    const { model, added_tokens } = JSON.parse(definition.toString());
    const entries: [string, number][] = Array.isArray(model.vocab)
      ? model.vocab.map(([token]: [string], id: number) => [token, id])
      : Object.entries(model.vocab);
    for (const { content, id } of added_tokens ?? []) entries.push([content, id]);
    return new Map(entries);
  } catch {
    return null;
  }
}

/** A token of one tokenizer, and what another one makes of it. */
export interface TokenDifference {
  token: string;
  id: number;
  /** undefined: it does not know it. */
  other: number | undefined;
}

/**
 * How the token ids of two directories compare: 'same', the first token of `one` that differs, or 'unknown' where one of them has no tokenizer.json.
 * `counts`: whether a difference is one; default: each.
 */
export function compareTokenizers(
  one: string,
  other: string,
  counts: (difference: TokenDifference) => boolean = () => true,
): 'same' | 'unknown' | TokenDifference {
  const [first, second] = [one, other].map((directory) => path.join(directory, 'tokenizer.json'));
  if (first === undefined || second === undefined || !existsSync(first) || !existsSync(second))
    return 'unknown';
  const [mine, others] = [readFileSync(first), readFileSync(second)];
  if (mine.equals(others)) return 'same';
  const [ours, theirs] = [vocabulary(mine), vocabulary(others)];
  if (ours === null || theirs === null) return 'unknown';
  for (const [token, id] of ours) {
    const difference = { token, id, other: theirs.get(token) };
    if (difference.other !== id && counts(difference)) return difference;
  }
  return 'same';
}

/** "has id 3" or "does not know it", of the other tokenizer. */
export const otherId = ({ other }: TokenDifference): string =>
  other === undefined ? 'does not know it' : `has id ${other}`;
