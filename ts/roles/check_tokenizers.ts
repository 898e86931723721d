// Whether what reads the policy's token ids as they are means the same tokens by them: else it would learn, or score, noise, and nothing would say so.
import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedConfig } from '../config/config';
import { compareTokenizers, otherId, type TokenDifference } from '../data/same_tokenizer';
import { ConfigError } from '../errors';
import { modelRoles, type RunRoles } from './model_roles';
import type { RoleSettings } from './role_settings';

/**
 * Compares the tokens of tokenizer.json, and reads nothing else but config.json of teachers. A directory without one is taken at its word.
 * @param absent directories of models that are passed over
 * @throws ConfigError naming the key, the first token whose ids differ, and these
 */
export function checkTokenizers(config: ResolvedConfig, roles: RunRoles, absent: readonly string[]): void {
  const { path, tokenizer_path } = config.actor_rollout_ref.model;
  const policy = tokenizer_path ?? path;
  const there = modelRoles(config, roles).flatMap(({ role }) => (absent.includes(role.model) ? [] : [role]));
  const actor = there.find(({ name }) => name === 'actor');
  for (const role of there) {
    if (role.name === 'critic') checkCritic(policy, role);
    if (role.name === 'reward model') checkRewardModel(policy, config, role);
    if (role.name === 'teacher') checkTeacher(policy, role, actor);
  }
}

const vocabularyOf = (role: RoleSettings): number =>
  readModelShape(role.model, role.head, role.keys.model, role).config.vocabSize;

const differs = (policy: string, { name, model }: RoleSettings, found: TokenDifference): string =>
  `the ${name} in ${model} has another tokenizer than the policy (${policy}): ${JSON.stringify(found.token)} has id ${found.id} there, and the ` +
  `${name}'s ${otherId(found)}`;

/** It learns what tokens are worth that it does not know: those that were added to the policy, or that have other names there. */
function checkCritic(policy: string, role: RoleSettings): void {
  const { model } = role.keys;
  const found = compareTokenizers(policy, role.model, ({ other }) => other !== undefined);
  if (typeof found === 'string') return;
  throw new ConfigError(
    `${model}: ${differs(policy, role, found)}: a critic reads the token ids of the policy. Expected a model that does, too; ` +
      'if this one does, whatever its tokenizer.json says, remove that file',
    model,
  );
}

function checkRewardModel(policy: string, { reward }: ResolvedConfig, role: RoleSettings): void {
  const { input_tokenizer, tokenizer_path } = reward.reward_model;
  if (input_tokenizer !== null) return;
  const found = compareTokenizers(policy, tokenizer_path ?? role.model);
  if (typeof found === 'string') return;
  const key = 'reward.reward_model.input_tokenizer';
  throw new ConfigError(`${key}: ${differs(policy, role, found)}. Set ${key}=${policy}`, key);
}

/** `actor`: undefined where its model is not there. */
function checkTeacher(policy: string, role: RoleSettings, actor: RoleSettings | undefined): void {
  const { model } = role.keys;
  const found = compareTokenizers(policy, role.model);
  if (typeof found === 'object')
    throw new ConfigError(
      `${model}: ${differs(policy, role, found)}: a teacher evaluates the token ids of the policy`,
      model,
    );
  // With one tokenizer the rest of the larger vocabulary is padding.
  if (found === 'same' || actor === undefined) return;
  const [own, size] = [vocabularyOf(actor), vocabularyOf(role)];
  if (own === size) return;
  throw new ConfigError(
    `${model}: the teacher in ${role.model} has a vocabulary of ${size} tokens, and the policy one of ${own}: expected the same, ` +
      'or a tokenizer.json beside both models that lists the same ids',
    model,
  );
}
