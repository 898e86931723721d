import { compareTokenizers, otherId } from '../data/same_tokenizer';
import { ConfigError } from '../errors';

/**
 * A reward model that reads the policy's token ids as they are must have the policy's tokenizer: with another one it would
 * score noise and nothing would say so. Directories without tokenizer.json are taken at their word.
 * @throws ConfigError naming a token whose ids differ
 */
export function checkSameTokenizer(policy: string, rewardModel: string): void {
  const found = compareTokenizers(policy, rewardModel);
  if (typeof found === 'string') return;
  throw new ConfigError(
    `reward.reward_model.input_tokenizer: the reward model in ${rewardModel} has another tokenizer than the policy ` +
      `(${policy}): ${JSON.stringify(found.token)} has id ${found.id} there, and the reward model's ${otherId(found)}. ` +
      `Set reward.reward_model.input_tokenizer=${policy}`,
    'reward.reward_model.input_tokenizer',
  );
}
