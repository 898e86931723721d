import type { ResolvedConfig } from '../config/config';
import { teachersOf } from '../config/derived/teachers';
import { WHOLE_MODEL } from './megatron_options';
import type { RoleSettings } from './role_settings';

/** Of every teacher of a configuration: a model that does not learn, sharded over the workers of the policy. */
export function teacherSettings(config: ResolvedConfig): RoleSettings[] {
  return teachersOf(config).map(({ section, keys }) => ({
    name: 'teacher',
    model: keys.model_path as string,
    tokenizer: null,
    head: 'lm',
    dtype: keys.dtype,
    masterDtype: null,
    fsdp: keys.fsdp_config,
    reduction: 'micro_batch',
    layout: WHOLE_MODEL,
    ulysses: keys.ulysses_sequence_parallel_size,
    tokensPerRank: keys.forward_max_token_len_per_gpu,
    gradientCheckpointing: false,
    activationOffload: false,
    maxPositionEmbeddings: null,
    readsImages: config.actor_rollout_ref.model.read_images === true,
    lora: {},
    optim: null,
    keys: {
      model: `${section}.model_path`,
      ulysses: `${section}.ulysses_sequence_parallel_size`,
      layout: section,
      lora: section,
      capacity: `${section}.forward_max_token_len_per_gpu`,
      dtype: `${section}.dtype`,
      gradientCheckpointing: null,
      activationOffload: null,
      sharding: `${section}.fsdp_config`,
      placement: `${section}.fsdp_config`,
      reduction: null,
    },
  }));
}
