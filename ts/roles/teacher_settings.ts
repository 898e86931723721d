import type { ResolvedConfig } from '../config/config';
import { WHOLE_MODEL } from './megatron_options';
import type { RoleSettings } from './role_settings';

const TEACHER = 'distillation.teacher_models.teacher_model';

/** Of a configuration that names one: a model that does not learn, sharded over the workers of the policy. */
export function teacherSettings({ distillation }: ResolvedConfig): RoleSettings {
  const keys = distillation.teacher_models.teacher_model;
  return {
    name: 'teacher',
    model: keys.model_path as string,
    tokenizer: null,
    head: 'lm',
    dtype: keys.dtype,
    fsdp: keys.fsdp_config,
    reduction: 'micro_batch',
    layout: WHOLE_MODEL,
    ulysses: keys.ulysses_sequence_parallel_size,
    tokensPerRank: keys.forward_max_token_len_per_gpu,
    gradientCheckpointing: false,
    maxPositionEmbeddings: null,
    lora: {},
    optim: null,
    keys: {
      model: `${TEACHER}.model_path`,
      ulysses: `${TEACHER}.ulysses_sequence_parallel_size`,
      layout: TEACHER,
      lora: TEACHER,
      capacity: `${TEACHER}.forward_max_token_len_per_gpu`,
      dtype: `${TEACHER}.dtype`,
      gradientCheckpointing: null,
      sharding: `${TEACHER}.fsdp_config`,
      placement: `${TEACHER}.fsdp_config`,
    },
  };
}
