import { above, choice, field, fixed, ignored, moved, orNull, str } from './field';
import { NOT_YET_PLURAL } from './reasons';
import { olderRewardModelKeys, rewardModelKeys } from './reward_model_section';
import { olderSandboxFusionKeys, sandboxFusionKeys, sandboxKeys } from './sandbox_section';

const MANAGERS = `reward managers other than naive ${NOT_YET_PLURAL}`;

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
  reward_model: rewardModelKeys,
  sandbox: sandboxKeys,
  sandbox_fusion: sandboxFusionKeys,
};

/** Where older versions of verl keep the keys of `reward`. */
export const customRewardFunctionSection = {
  path: moved('reward.custom_reward_function.path'),
  name: moved('reward.custom_reward_function.name'),
  reward_kwargs: moved('reward.custom_reward_function.reward_kwargs'),
};

export const rewardModelSection = {
  ...olderRewardModelKeys,
  reward_manager: fixed(['naive'], MANAGERS),
  reward_kwargs: fixed([null, {}], 'write them into the module of the reward function'),
  reward_loop_source: ignored('managers are built in'),
  reward_loop_module_path: ignored('managers are built in'),
  reward_loop_class_name: ignored('managers are built in'),
  num_workers: ignored('reward functions run in the trainer process'),
  use_reward_loop: ignored('reward functions may be async'),
  launch_reward_fn_async: ignored('reward functions may be async'),
  sandbox_fusion: olderSandboxFusionKeys,
};
