import { above, choice, field, fixed, ignored, moved, orNull, str } from './field';
import { NOT_YET, NOT_YET_PLURAL } from './reasons';

const MANAGERS = `reward managers other than naive ${NOT_YET_PLURAL}`;

const REWARD_MODEL = {
  enable: fixed([false], `a reward model ${NOT_YET}`),
  enable_resource_pool: fixed([false], `a reward model ${NOT_YET}`),
  model: ignored('there is no reward model'),
  model_path: ignored('there is no reward model'),
  rollout: ignored('there is no reward model'),
  strategy: ignored('there is no reward model'),
  micro_batch_size: ignored('there is no reward model'),
  micro_batch_size_per_gpu: ignored('there is no reward model'),
  max_length: ignored('there is no reward model'),
};

export const sandboxSection = {
  url: fixed([null], `code execution ${NOT_YET}`),
  max_concurrent: ignored('there is no sandbox'),
  memory_limit_mb: ignored('there is no sandbox'),
};

export const rewardSection = {
  custom_reward_function: {
    path: field(orNull(str), null, 'JavaScript or TypeScript module with the reward function.'),
    name: field(str, 'compute_score', 'Its export.'),
    reward_kwargs: fixed([null, {}], 'write them into the module of the reward function'),
  },
  timeout: field(above(0), 60, 'Seconds that the reward of one response may take.'),
  on_error: field(
    choice('fail', 'zero'),
    'fail',
    'A reward function that throws, hangs or returns no number: end the run, or score 0.',
  ),
  num_workers: ignored('reward functions run in the trainer process'),
  reward_manager: {
    name: fixed(['naive'], MANAGERS),
    source: ignored('managers are built in'),
    module: ignored('managers are built in'),
  },
  reward_kwargs: fixed([null, {}], 'write them into the module of the reward function'),
  reward_model: REWARD_MODEL,
  sandbox_fusion: sandboxSection,
};

/** Where older versions of verl keep the keys of `reward`. */
export const customRewardFunctionSection = {
  path: moved('reward.custom_reward_function.path'),
  name: moved('reward.custom_reward_function.name'),
  reward_kwargs: moved('reward.custom_reward_function.reward_kwargs'),
};

export const rewardModelSection = {
  ...REWARD_MODEL,
  reward_manager: fixed(['naive'], MANAGERS),
  reward_kwargs: fixed([null, {}], 'write them into the module of the reward function'),
  reward_loop_source: ignored('managers are built in'),
  reward_loop_module_path: ignored('managers are built in'),
  reward_loop_class_name: ignored('managers are built in'),
  num_workers: ignored('reward functions run in the trainer process'),
  use_reward_loop: ignored('reward functions may be async'),
  launch_reward_fn_async: ignored('reward functions may be async'),
  sandbox_fusion: sandboxSection,
};
