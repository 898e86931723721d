import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** Token -> id, as tokenizer.json lists them; null: there is no such file, or not in this form. */
function vocabulary(directory: string): Map<string, number> | null {
  const file = path.join(directory, 'tokenizer.json');
  if (!existsSync(file)) return null;
  try {
    const { model, added_tokens } = JSON.parse(readFileSync(file, 'utf8'));
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

/** How the token ids of two directories compare: 'same', the first token of `one` that differs, or 'unknown' where one of them has no tokenizer.json. */
export function compareTokenizers(one: string, other: string): 'same' | 'unknown' | TokenDifference {
  const [ours, theirs] = [vocabulary(one), vocabulary(other)];
  if (ours === null || theirs === null) return 'unknown';
  for (const [token, id] of ours)
    if (theirs.get(token) !== id) return { token, id, other: theirs.get(token) };
  return 'same';
}

/** "has id 3" or "does not know it", of the other tokenizer. */
export const otherId = ({ other }: TokenDifference): string =>
  other === undefined ? 'does not know it' : `has id ${other}`;
