// Whether every model of a run can take the sequences that the policy makes: what does not fit would end the run in a step, and other tokens would not.
import { existsSync } from 'node:fs';
import path from 'node:path';
import { readModelShape } from '../checkpoint/model_shape';
import type { ResolvedConfig } from '../config/config';
import { longestText, MOST_TOKENS, sequenceBounds } from '../config/derived/sequence_bounds';
import { Tokenizer } from '../data/tokenizer';
import { ConfigError } from '../errors';
import type { NativeModelConfig } from '../native/bridge';
import { checkTokenizers } from './check_tokenizers';
import { modelRoles, type RunRoles } from './model_roles';
import type { RoleSettings } from './role_settings';
import { teacherTokens } from './settings';

/**
 * Positions, tokens of the vocabulary and their ids. Reads config.json of each model, no weight, and the tokenizers of those that read the
 * policy's ids.
 * @param absent directories that are passed over
 * @throws ConfigError naming the key, with the numbers
 */
export function checkSizes(config: ResolvedConfig, roles: RunRoles, absent: readonly string[] = []): void {
  checkTokenizers(config, roles, absent);
  const shapes = modelRoles(config, roles)
    .filter(({ role }) => !absent.includes(role.model))
    .map(({ role }) => ({
      role,
      shape: readModelShape(role.model, role.head, role.keys.model, role).config,
    }));
  const actor = shapes.find(({ role }) => role.name === 'actor');
  if (actor !== undefined) checkMostTokens(config, actor.role, actor.shape);
  for (const { role, shape } of shapes) {
    // What it is given is cut, or is tokenized anew, to a length that nobody knows before.
    if (role.name === 'reward model' && !readsPolicyIds(config)) continue;
    checkPositions(config, role, shape);
    if (actor !== undefined) checkVocabulary(actor.role, actor.shape, role, shape);
    if (role.name === 'teacher') checkTopK(config, role, shape);
  }
}

function readsPolicyIds({ reward }: ResolvedConfig): boolean {
  const { input_tokenizer, truncation } = reward.reward_model;
  return input_tokenizer === null && truncation === 'error';
}

/** Of our own engine, and of a server that is started with it. */
function checkMostTokens(config: ResolvedConfig, { model }: RoleSettings, { maxPositions }: Shape): void {
  const { mode, max_model_len: most } = config.actor_rollout_ref.rollout;
  if (most === null || most <= maxPositions || mode === 'server') return;
  throw new ConfigError(
    `${MOST_TOKENS}: expected at most ${maxPositions}, the positions of the policy in ${model}, got ${most}`,
    MOST_TOKENS,
  );
}

type Shape = Pick<NativeModelConfig, 'maxPositions' | 'vocabSize' | 'positions'>;

function checkPositions(config: ResolvedConfig, { name, model, keys }: RoleSettings, shape: Shape): void {
  // A reward model reads its score one place later, which needs a position of its own where positions are learned.
  const after = name === 'reward model' && shape.positions !== 'rope' ? 1 : 0;
  const places = shape.maxPositions - after;
  if (sequenceBounds(config).sequence <= places) return;
  const policy = name === 'actor' || name === 'reference';
  const key = policy ? 'data.max_response_length' : keys.model;
  const remedy =
    name === 'reward model' ? ', or cut what it is given (reward.reward_model.truncation=left or right)' : '';
  throw new ConfigError(
    `${key}: ${longestText(config)} tokens are more than the ${places} positions of the ${policy ? 'model' : name} in ${model}: shorten prompts or responses, ` +
      `or bound their sum with ${MOST_TOKENS}${remedy}`,
    key,
  );
}

/** Of the policy's tokens, those that its tokenizer makes are there: the rest of a vocabulary is padding. */
function checkVocabulary(
  actor: RoleSettings,
  own: Shape,
  { name, model, keys }: RoleSettings,
  shape: Shape,
): void {
  const tokenizer = actor.tokenizer?.directory;
  if (shape.vocabSize >= own.vocabSize || tokenizer === undefined) return;
  if (!existsSync(path.join(tokenizer, 'tokenizer.json'))) return;
  const { vocabSize } = Tokenizer.load(tokenizer);
  if (vocabSize <= shape.vocabSize) return;
  throw new ConfigError(
    `${keys.model}: the ${name} in ${model} has a vocabulary of ${shape.vocabSize} tokens, and the tokenizer of the policy (${tokenizer}) makes ids up to ` +
      `${vocabSize - 1}: expected a model with the policy's tokens`,
    keys.model,
  );
}

function checkTopK(config: ResolvedConfig, { model }: RoleSettings, { vocabSize }: Shape): void {
  const topK = teacherTokens(config);
  if (topK <= vocabSize) return;
  throw new ConfigError(
    `distillation.distillation_loss.topk: expected at most ${vocabSize}, the vocabulary of the teacher in ${model}, got ${topK}`,
    'distillation.distillation_loss.topk',
  );
}
