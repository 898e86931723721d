import { actorSection, refSection } from './actor_section';
import { algorithmSection } from './algorithm_section';
import { criticSection } from './critic_section';
import { dataSection } from './data_section';
import { field, fixed, ignored, orNull, type Resolved, required, str, strings } from './field';
import { loggingSection } from './logging_section';
import { NO_PROFILER, NOT_YET } from './reasons';
import { customRewardFunctionSection, rewardModelSection, rewardSection } from './reward_section';
import { model } from './role_parts';
import { rolloutSection } from './rollout_section';
import { olderSandboxFusionKeys } from './sandbox_section';
import { trainerSection } from './trainer_section';
import { COLLECTIVE_TIMEOUT } from './worker_section';

// verl's configuration tree (its generated PPO config; main's defaults where versions differ), every key of it with a
// meaning here, a stated reason why it has none, or an error. See docs/config.md.

const LATER_SEARCH = `search during generation ${NOT_YET}`;

export const ppoSchema = {
  data: dataSection,
  actor_rollout_ref: {
    hybrid_engine: ignored('actor, reference and rollout always share their workers'),
    nccl_timeout: COLLECTIVE_TIMEOUT,
    model: {
      path: required(str, 'Hugging Face directory of the policy.'),
      ...model,
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
  sandbox_fusion: olderSandboxFusionKeys,
  algorithm: algorithmSection,
  trainer: trainerSection,
  logging: loggingSection,
  global_profiler: ignored(NO_PROFILER),
  ray_kwargs: ignored('there is no Ray'),
  ray_init: ignored('there is no Ray'),
  transfer_queue: ignored('batches travel with the calls'),
  hydra: ignored('there is no Hydra'),
  defaults: fixed(
    [[], ['_self_']],
    'configuration groups are not composed here: write all keys into one file',
  ),
  distillation: { enabled: fixed([false], `distillation ${NOT_YET}`) },
  model_engine: ignored('there is one engine'),
  do_search: fixed([false], LATER_SEARCH),
  max_turns: fixed([1], LATER_SEARCH),
  retriever: fixed([null, {}], LATER_SEARCH),
};

/** The resolved configuration of `troupe train`: verl's tree, every default filled in, frozen. */
export type ResolvedConfig = Resolved<typeof ppoSchema> & {
  readonly trainer: { readonly default_local_dir: string };
};
