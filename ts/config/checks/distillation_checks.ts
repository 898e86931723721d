import { ConfigError } from '../../errors';
import type { ResolvedConfig } from '../schema/ppo_schema';

const LOSS = 'distillation.distillation_loss';
const TEACHER = 'distillation.teacher_models.teacher_model';

/** Values below `distillation` that contradict each other or other sections. */
export function checkDistillation({ distillation, data, algorithm }: ResolvedConfig): void {
  if (!distillation.enabled) return;
  const refuse = (path: string, message: string): never => {
    throw new ConfigError(`${path}: ${message}`, path);
  };
  const { distillation_loss: loss, teacher_models } = distillation;
  const {
    model_path,
    forward_max_token_len_per_gpu: perRank,
    ulysses_sequence_parallel_size: ranks,
  } = teacher_models.teacher_model;
  if (model_path === null)
    refuse(
      `${TEACHER}.model_path`,
      'expected a directory because distillation.enabled is true, but it is not given',
    );
  if (!loss.use_policy_gradient && (loss.loss_mode === 'k1' || loss.loss_mode === 'kl'))
    refuse(
      `${LOSS}.loss_mode`,
      `the gradient of ${loss.loss_mode} does not depend on the teacher: set ${LOSS}.use_policy_gradient=true, or another mode such as k3`,
    );
  if (algorithm.rollout_correction.bypass_mode)
    refuse(
      'algorithm.rollout_correction.bypass_mode',
      'not there with distillation.enabled: set one of them to false',
    );
  const longest = data.max_prompt_length + data.max_response_length;
  if (perRank * ranks < longest)
    refuse(
      `${TEACHER}.forward_max_token_len_per_gpu`,
      `${perRank}${ranks === 1 ? '' : ` x ${ranks} ranks`} tokens cannot hold one sequence of data.max_prompt_length ` +
        `${data.max_prompt_length} + data.max_response_length ${data.max_response_length} = ${longest} tokens`,
    );
}
