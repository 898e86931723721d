import { registeredPolicyLoss } from '../../algorithms/policy_losses/registry';
import { resolveCorrection, takesAllAlike } from '../../algorithms/rollout_correction/options';
import { ConfigError } from '../../errors';
import { correctionOptions } from '../derived/correction';
import { longestText, sequenceBounds } from '../derived/sequence_bounds';
import { hasBoth, type TeacherConfig, teachersOf } from '../derived/teachers';
import type { ResolvedConfig } from '../schema/ppo_schema';

const LOSS = 'distillation.distillation_loss';

function refuse(path: string, message: string): never {
  throw new ConfigError(`${path}: ${message}`, path);
}

/** Values below `distillation` that contradict each other or other sections. */
export function checkDistillation(config: ResolvedConfig): void {
  const { distillation, algorithm, actor_rollout_ref } = config;
  if (!distillation.enabled) return;
  const { distillation_loss: loss } = distillation;
  if (!loss.use_policy_gradient && (loss.loss_mode === 'k1' || loss.loss_mode === 'kl'))
    refuse(
      `${LOSS}.loss_mode`,
      `the gradient of ${loss.loss_mode} does not depend on the teacher: set ${LOSS}.use_policy_gradient=true, or another mode such as k3`,
    );
  const { bypass_mode: bypass } = algorithm.rollout_correction;
  if (bypass && !takesAllAlike(resolveCorrection(correctionOptions(config))))
    refuse(
      'algorithm.rollout_correction.bypass_mode',
      'with distillation.enabled expected no rollout_rs, and no rollout_is with loss_type reinforce: what they leave out or weigh is the policy’s, not the teacher’s',
    );
  if (
    loss.use_policy_gradient &&
    registeredPolicyLoss(actor_rollout_ref.actor.policy_loss.loss_mode) !== null
  )
    refuse(
      `${LOSS}.use_policy_gradient`,
      'not there with a loss of registerPolicyLoss (actor_rollout_ref.actor.policy_loss.loss_mode)',
    );
  if (hasBoth(config))
    refuse(
      'distillation.teacher_models.teacher_model',
      'the name of a teacher that is the only one: give it another name beside others',
    );
  const teachers = teachersOf(config);
  const found = new Map<string, string>();
  for (const teacher of teachers) {
    checkTeacherKeys(config, teacher);
    const { section, keys } = teacher;
    if (teachers.length === 1) continue;
    if (keys.key === null)
      refuse(
        `${section}.key`,
        `expected a data_source because there are ${teachers.length} teachers, but it is not given`,
      );
    const other = found.get(keys.key);
    if (other !== undefined)
      refuse(
        `${section}.key`,
        `expected another data_source than ${other}.key, got ${JSON.stringify(keys.key)}`,
      );
    found.set(keys.key, section);
  }
}

function checkTeacherKeys(config: ResolvedConfig, { section, keys }: TeacherConfig): void {
  const { model_path, forward_max_token_len_per_gpu: perRank, ulysses_sequence_parallel_size: ranks } = keys;
  if (model_path === null)
    refuse(
      `${section}.model_path`,
      'expected a directory because distillation.enabled is true, but it is not given',
    );
  if (perRank * ranks < sequenceBounds(config).sequence)
    refuse(
      `${section}.forward_max_token_len_per_gpu`,
      `${perRank}${ranks === 1 ? '' : ` x ${ranks} ranks`} tokens cannot hold one sequence of ` +
        `${longestText(config)} tokens`,
    );
}
