import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { ConfigError } from '../errors';

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

/**
 * A reward model that reads the policy's token ids as they are must have the policy's tokenizer: with another one it would
 * score noise and nothing would say so. Directories without tokenizer.json are taken at their word.
 * @throws ConfigError naming a token whose ids differ
 */
export function checkSameTokenizer(policy: string, rewardModel: string): void {
  const [ours, theirs] = [vocabulary(policy), vocabulary(rewardModel)];
  if (ours === null || theirs === null) return;
  for (const [token, id] of ours) {
    const other = theirs.get(token);
    if (other === id) continue;
    const there = other === undefined ? 'does not know it' : `has id ${other}`;
    throw new ConfigError(
      `reward.reward_model.input_tokenizer: the reward model in ${rewardModel} has another tokenizer than the policy ` +
        `(${policy}): ${JSON.stringify(token)} has id ${id} there, and the reward model's ${there}. ` +
        `Set reward.reward_model.input_tokenizer=${policy}`,
      'reward.reward_model.input_tokenizer',
    );
  }
}
