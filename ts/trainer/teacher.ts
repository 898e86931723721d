// The model that a policy learns from on its own responses (on-policy distillation).
import { Actor } from '../actor/actor';
import type { Batch } from '../batch/batch';
import type { ResolvedConfig } from '../config/config';
import type { WorkerGroup } from '../controller/worker_group';
import { compareTokenizers, otherId } from '../data/same_tokenizer';
import { ConfigError } from '../errors';
import { readModelShape } from '../planner/model_shape';
import { engineOptions } from '../roles/role_options';
import { teacherTokens } from '../roles/settings';
import { teacherSettings } from '../roles/teacher_settings';

type Teacher = Pick<Actor, 'computeLogProb'>;

const KEY = 'distillation.teacher_models.teacher_model.model_path';

/** Reads config.json and the tokenizer of both models. @throws ConfigError where their token ids differ */
export function checkTeacher(config: ResolvedConfig): void {
  const { model } = config.actor_rollout_ref;
  const teacher = config.distillation.teacher_models.teacher_model.model_path as string;
  const found = compareTokenizers(model.tokenizer_path ?? model.path, teacher);
  if (typeof found === 'object')
    throw new ConfigError(
      `${KEY}: the teacher in ${teacher} has another tokenizer than the policy (${model.tokenizer_path ?? model.path}): ` +
        `${JSON.stringify(found.token)} has id ${found.id} there, and the teacher's ${otherId(found)}: a teacher evaluates the token ids of the policy`,
      KEY,
    );
  const sizes = [
    readModelShape(model.path, 'lm', 'actor_rollout_ref.model.path'),
    readModelShape(teacher, 'lm', KEY),
  ].map(({ config: { vocabSize } }) => vocabSize);
  // With one tokenizer the rest of the larger vocabulary is padding.
  if (found === 'same' || sizes[0] === sizes[1]) return;
  throw new ConfigError(
    `${KEY}: the teacher in ${teacher} has a vocabulary of ${sizes[1]} tokens, and the policy one of ${sizes[0]}: expected the same, ` +
      'or a tokenizer.json beside both models that lists the same ids',
    KEY,
  );
}

export function createTeacher(config: ResolvedConfig, group: WorkerGroup): Promise<Teacher> {
  return Actor.create({ ...engineOptions(teacherSettings(config), group, config), optim: null });
}

/**
 * The batch with what the distillation's loss needs of the teacher. Its temperature is 1 whatever that of the rollout, as in verl, whose
 * teacher's log-probs are those of an inference server for a prompt.
 */
export async function withTeacher(config: ResolvedConfig, teacher: Teacher, batch: Batch): Promise<Batch> {
  const topK = teacherTokens(config);
  const { logProbs, topLogProbs, topIds } = await teacher.computeLogProb(batch, { topK });
  return topK === 0
    ? batch.with({ teacherLogProbs: logProbs }, { adopt: true })
    : batch.with({ teacherTopLogProbs: topLogProbs, teacherTopIds: topIds });
}
