import {
  above,
  bool,
  choice,
  count,
  derived,
  field,
  ignored,
  mapping,
  moved,
  num,
  orNull,
  seconds,
  str,
} from './field';
import { olderRewardModelKeys, rewardModelKeys } from './reward_model_section';
import { olderSandboxFusionKeys, sandboxFusionKeys, sandboxKeys } from './sandbox_section';

export const rewardSection = {
  custom_reward_function: {
    path: field(
      orNull(str),
      null,
      'Module with the reward function: JavaScript, TypeScript or Python (.py).',
    ),
    name: field(str, 'compute_score', 'Its export; in Python the name of the function.'),
    reward_kwargs: field(mapping, {}, 'Its second argument; in Python keyword arguments.'),
    python: field(str, 'python3', 'The interpreter that runs a module in Python.'),
  },
  timeout: field(seconds, 300, 'Seconds that the reward of one response (batch: of a batch) may take.'),
  on_error: field(
    orNull(choice('fail', 'zero')),
    null,
    'A reward function that throws, hangs or returns no number: end the run (fail), or score 0 (zero). Default: zero with prime and rate_limited, fail with the others.',
  ),
  num_workers: field(count('processes'), 8, 'prime: processes that score.'),
  reward_manager: {
    source: field(choice('register', 'importlib'), 'register', 'importlib: the manager of `module`.'),
    name: field(
      str,
      'naive',
      'naive, batch, prime, dapo, gdpo, rate_limited, or a registered one; see docs/rewards.md.',
    ),
    module: {
      path: field(orNull(str), null, 'JavaScript or TypeScript module with the manager.'),
      name: field(str, 'custom_reward_manager', 'Its export.'),
    },
  },
  reward_kwargs: {
    overlong_buffer_cfg: {
      enable: field(bool, false, 'dapo: penalty for responses near or over the limit.'),
      len: field(count('tokens'), 512, 'dapo: tokens before the limit in which the penalty grows.'),
      penalty_factor: field(num(0), 1, 'dapo: penalty at the limit.'),
      log: field(bool, false, 'dapo: report overlong_reward and overlong.'),
    },
    max_resp_len: derived(count('tokens'), 'data.max_response_length', 'dapo: the limit, in tokens.'),
  },
  max_concurrent: field(count('processes'), 1, 'rate_limited: requests at once.'),
  max_rpm: field(orNull(above(0)), null, 'rate_limited: requests per minute.'),
  max_tpm: field(orNull(above(0)), null, 'rate_limited: tokens per minute.'),
  estimated_tokens_per_request: field(
    count('batchTokens'),
    2000,
    'rate_limited: tokens that each request counts for.',
  ),
  qa_em: {
    structure_format_score: field(num(0), 0, 'qa_em: of a valid form without the right answer.'),
    final_format_score: field(num(0), 0, 'qa_em: of a wrong answer in an invalid form.'),
    retrieval_score: field(num(0), 0, 'qa_em: on top, where the right answer was found.'),
  },
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
  reward_manager: moved('reward.reward_manager.name'),
  structure_format_score: moved('reward.qa_em.structure_format_score'),
  final_format_score: moved('reward.qa_em.final_format_score'),
  retrieval_score: moved('reward.qa_em.retrieval_score'),
  reward_kwargs: moved('reward.reward_kwargs'),
  overlong_buffer: moved('reward.reward_kwargs.overlong_buffer_cfg'),
  max_concurrent: moved('reward.max_concurrent'),
  max_rpm: moved('reward.max_rpm'),
  max_tpm: moved('reward.max_tpm'),
  estimated_tokens_per_request: moved('reward.estimated_tokens_per_request'),
  timeout: moved('reward.timeout'),
  reward_loop_source: moved('reward.reward_manager.source'),
  reward_loop_module_path: moved('reward.reward_manager.module.path'),
  reward_loop_class_name: moved('reward.reward_manager.module.name'),
  num_workers: moved('reward.num_workers'),
  use_reward_loop: ignored('reward functions may be async'),
  launch_reward_fn_async: ignored('reward functions may be async'),
  sandbox_fusion: olderSandboxFusionKeys,
};
