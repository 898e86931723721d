import { actorSection, refSection } from './actor_section';
import { algorithmSection } from './algorithm_section';
import { criticSection } from './critic_section';
import { dataSection } from './data_section';
import { distillationSection } from './distillation_section';
import {
  bool,
  count,
  field,
  fixed,
  ignored,
  missing,
  moved,
  orNull,
  type Resolved,
  required,
  str,
  strings,
} from './field';
import { loggingSection } from './logging_section';
import { globalProfilerSection } from './profiler_section';
import { customRewardFunctionSection, rewardModelSection, rewardSection } from './reward_section';
import { model, readImages } from './role_parts';
import { rolloutSection } from './rollout_section';
import { olderSandboxFusionKeys } from './sandbox_section';
import { skipSection } from './skip_section';
import { trainerSection } from './trainer_section';
import { COLLECTIVE_TIMEOUT } from './worker_section';

// verl's configuration tree (its generated PPO config; main's defaults where versions differ), every key of it with a
// meaning here, a stated reason why it has none, or an error. See docs/config.md.

const OWN_PROGRAM =
  'is a section of verl’s programs one_step_off_policy and fully_async_policy, which troupe import-verl translates: ' +
  'give trainer.v1.trainer_mode and trainer.v1.separate_async.num_warmup_batches';

export const ppoSchema = {
  data: dataSection,
  actor_rollout_ref: {
    hybrid_engine: ignored('actor, reference and rollout always share their workers'),
    nccl_timeout: COLLECTIVE_TIMEOUT,
    checkpoint_engine: ignored('weights go to the rollout in buckets always'),
    profiler: ignored('actor_rollout_ref.actor.profiler says it'),
    model: {
      path: required(str, 'Hugging Face directory of the policy.'),
      ...model,
      read_images: readImages,
      external_lib: field(
        orNull(strings),
        null,
        'JavaScript files that are loaded first, to register advantage estimators, rewards and the like.',
      ),
    },
    actor: actorSection,
    ref: refSection,
    rollout: rolloutSection,
  },
  critic: criticSection,
  reward: rewardSection,
  custom_reward_function: customRewardFunctionSection,
  reward_model: rewardModelSection,
  reward_manager: moved('reward.reward_manager'),
  sandbox_fusion: olderSandboxFusionKeys,
  algorithm: algorithmSection,
  trainer: trainerSection,
  logging: loggingSection,
  global_profiler: globalProfilerSection,
  ray_kwargs: ignored('there is no Ray'),
  ray_init: ignored('there is no Ray'),
  transfer_queue: ignored('batches travel with the calls'),
  hydra: ignored('there is no Hydra'),
  defaults: fixed(
    [[], ['_self_']],
    'configuration groups are not composed here: write all keys into one file',
  ),
  distillation: distillationSection,
  skip: skipSection,
  model_engine: fixed(
    ['dp', 'megatron'],
    `${missing('another engine than FSDP or Megatron')}; megatron: the default of actor_rollout_ref.actor.strategy and critic.strategy`,
  ),
  async_training: fixed([null], `${OWN_PROGRAM}, data.train_batch_size and trainer.total_training_steps`),
  rollout: fixed(
    [null],
    `the keys of a rollout are in actor_rollout_ref.rollout; this one ${OWN_PROGRAM}, actor_rollout_ref.rollout.nnodes and n_gpus_per_node`,
  ),
  do_search: field(
    orNull(bool),
    null,
    'Search-R1: let the search agent work on prompts. null: where retriever.url is given.',
  ),
  max_turns: field(count('passes', 0), 10, 'Search-R1: responses that may search; one more may only answer.'),
  retriever: {
    url: field(orNull(str), null, 'Search-R1: the retrieval server, such as http://127.0.0.1:8000/retrieve.'),
    topk: field(count('passes'), 3, 'Search-R1: passages per search.'),
  },
};

/** The resolved configuration of `troupe train`: verl's tree, every default filled in, frozen. */
export type ResolvedConfig = Resolved<typeof ppoSchema> & {
  readonly trainer: { readonly default_local_dir: string };
};
