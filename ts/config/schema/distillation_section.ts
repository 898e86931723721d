import { DISTILLATION_LOSSES } from '../../algorithms/names';
import {
  above,
  bool,
  choice,
  count,
  derived,
  dtype,
  field,
  fixed,
  ignored,
  name,
  named,
  num,
  orNull,
  str,
} from './field';
import { FUSED } from './reasons';
import { sharding } from './role_parts';

const SHARED =
  'the teacher is an engine of ours in the workers of the policy, as the reference is: no server is started';
const ACTOR = 'actor_rollout_ref.actor';
const { param_offload, reshard_after_forward, fsdp_size, forward_prefetch } = sharding;

const distillationLoss = {
  loss_mode: field(
    choice(...DISTILLATION_LOSSES),
    'k3',
    'Estimator of the KL of the sampled tokens (k1 = kl, k2 = mse, k3 = low_var_kl, abs), or forward_kl_topk; see docs/algorithms.md.',
  ),
  topk: field(count('tokens'), 32, 'forward_kl_topk: tokens of the teacher’s at each position.'),
  use_task_rewards: field(
    bool,
    true,
    'Learn from the rewards, too; false: from the teacher alone, without entropy bonus and KL loss.',
  ),
  distillation_loss_coef: field(num(), 1, 'With use_task_rewards: factor of the distillation loss.'),
  loss_max_clamp: field(orNull(above(0)), null, 'Largest loss of a token, to either side; null: any.'),
  log_prob_min_clamp: field(
    orNull(num(undefined, 0)),
    null,
    'forward_kl_topk: least log-prob of either model; null: any.',
  ),
  use_policy_gradient: field(
    bool,
    false,
    'Minus the loss of a token is the advantage of a clipped policy loss; false: the loss has its own gradient.',
  ),
  policy_loss_mode: fixed(['vanilla'], 'only vanilla is there for use_policy_gradient, as in verl'),
  clip_ratio: field(num(0), 0.2, 'With use_policy_gradient: clip range.'),
  clip_ratio_low: derived(num(0), 'distillation.distillation_loss.clip_ratio', 'Lower clip range.'),
  clip_ratio_high: derived(num(0), 'distillation.distillation_loss.clip_ratio', 'Upper clip range.'),
  use_chunked_topk: ignored(FUSED),
  chunked_topk_chunk_size: ignored(FUSED),
  global_batch_info: ignored('the core counts'),
  loss_settings: ignored('loss_mode says it'),
};

const teacherModel = {
  key: field(
    orNull(name),
    null,
    'Of several teachers, which have names of their own in place of teacher_model and the same keys: the data_source of the prompts that it is for. One teacher is for all.',
  ),
  model_path: field(
    orNull(str),
    null,
    'Hugging Face directory of the teacher, whose token ids are the policy’s.',
  ),
  num_replicas: ignored(SHARED),
  inference: ignored(SHARED),
  forward_max_token_len_per_gpu: derived(
    count('batchTokens'),
    `${ACTOR}.ppo_max_token_len_per_gpu`,
    'Packing capacity of the teacher: tokens per micro-batch.',
  ),
  dtype: field(orNull(dtype), null, 'Compute dtype; null: float32 on cpu, bfloat16 on cuda.'),
  ulysses_sequence_parallel_size: derived(
    count('ranks'),
    `${ACTOR}.ulysses_sequence_parallel_size`,
    'Neighbouring workers that share micro-batches of the teacher.',
  ),
  fsdp_config: { param_offload, reshard_after_forward, fsdp_size, forward_prefetch },
};

/** `distillation`: on-policy distillation, docs/algorithms.md. */
export const distillationSection = {
  enabled: field(bool, false, 'Learn from a teacher, which evaluates the policy’s own responses.'),
  distillation_loss: distillationLoss,
  // Others have names of the user's: distillation.teacher_models.mine.model_path.
  teacher_models: named({ teacher_model: teacherModel }, teacherModel),
  teacher_key: fixed(['data_source'], 'teachers are told apart by the data_source of a prompt'),
  nnodes: ignored(SHARED),
  n_gpus_per_node: ignored(SHARED),
};
