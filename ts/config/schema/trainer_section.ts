import { asynchronousSection } from './asynchronous_section';
import { faultSection } from './fault_section';
import {
  above,
  bool,
  byteSize,
  choice,
  count,
  field,
  fixed,
  ignored,
  int,
  name,
  needs,
  orNull,
  str,
  strings,
} from './field';
import { launcherSection } from './launcher_section';
import { NO_PROFILER } from './reasons';
import { stagingSection } from './staging_section';
import { workerTimeouts } from './worker_section';

export const trainerSection = {
  total_epochs: field(count('passes'), 30, 'Passes over the training prompts.'),
  total_training_steps: field(
    orNull(count('steps')),
    null,
    'Ends the run earlier or later than total_epochs.',
  ),
  project_name: field(name, 'troupe', 'For loggers and the default directory.'),
  experiment_name: field(name, 'run', 'For loggers and the default directory.'),
  logger: field(
    strings,
    ['console'] as readonly string[],
    'console, tensorboard, wandb, mlflow, prometheus; file (jsonl) is always written.',
  ),
  ui: field(
    bool,
    false,
    'Serve the page of `troupe ui` over the runs beside this one while it runs, and print its address.',
  ),
  wandb_proxy: fixed([null], 'requests go out directly (docs/logging.md says how to use a proxy)'),
  nnodes: field(count('ranks'), 1, 'Machines.'),
  launcher: launcherSection,
  fault_tolerance: faultSection,
  checkpoint_staging: stagingSection,
  n_gpus_per_node: field(
    count('ranksPerMachine'),
    1,
    'Worker processes that share models and work; on cuda one per GPU.',
  ),
  save_freq: field(
    int(-1),
    -1,
    'Steps between checkpoints, and one after the last step; -1, 0: none. The final model is written anyway.',
  ),
  test_freq: field(int(-1), -1, 'Steps between validations, and one after the last step; -1, 0: none.'),
  val_before_train: field(bool, true, 'Validate before the first step.'),
  val_only: field(bool, false, 'Validate and stop.'),
  critic_warmup: field(count('steps', 0), 0, 'Steps in which only the critic is updated.'),
  resume_mode: field(
    choice('auto', 'disable', 'resume_path'),
    'auto',
    'auto: from the newest checkpoint of default_local_dir.',
  ),
  resume_with_changes: field(
    bool,
    false,
    'Resume although the checkpoint is of a run that learned something else: with other models, data, estimator or loss.',
  ),
  resume_from_path: field(orNull(str), null, 'resume_path: a global_step_N directory.'),
  default_local_dir: field(
    orNull(str),
    null,
    'Run directory; null: checkpoints/{project_name}/{experiment_name}.',
  ),
  max_actor_ckpt_to_keep: field(orNull(int(1)), null, 'Newest checkpoints to keep; null: all.'),
  max_critic_ckpt_to_keep: ignored('actor and critic are saved together: max_actor_ckpt_to_keep holds'),
  rollout_data_dir: field(orNull(str), null, 'Directory for all generations of every step.'),
  validation_data_dir: field(orNull(str), null, 'Directory for all validation generations.'),
  log_val_generations: field(
    count('sequences', 0),
    0,
    'Answers of every validation that loggers show; 0: none.',
  ),
  device: field(
    choice('auto', 'cpu', 'cuda'),
    'auto',
    'Where the engines run; auto: cuda where the native addon has it and a GPU is visible, else cpu. Printed at the start.',
  ),
  num_threads: field(orNull(count('threads')), null, 'LibTorch threads per worker; null: LibTorch’s choice.'),
  worker_timeouts: workerTimeouts,
  peak_tflops: field(
    orNull(above(0)),
    null,
    'Peak TFLOP/s of one device at the compute dtype, for perf/mfu/*; null: no MFU.',
  ),
  memory_per_rank: field(
    orNull(byteSize),
    null,
    'Memory of one GPU (on cpu of one worker process), such as 80GiB, for gradient_reduction auto and troupe plan; null: not known.',
  ),
  seed: field(int(0), 1, 'Seed of everything random.'),
  balance_batch: ignored('batches are balanced over the ranks by their work always'),
  default_hdfs_dir: fixed([null], 'checkpoints are local directories'),
  del_local_ckpt_after_load: fixed([false], 'a checkpoint is never deleted because it was read'),
  esi_redundant_time: ignored('there is no scheduler integration'),
  ray_wait_register_center_timeout: ignored('there is no Ray'),
  use_legacy_worker_impl: ignored('there is one worker implementation'),
  use_v1: ignored('there is one trainer'),
  v1: asynchronousSection,
  profile_steps: needs('a profiler', []),
  controller_nsight_options: ignored(NO_PROFILER),
  worker_nsight_options: ignored(NO_PROFILER),
  npu_profile: ignored(NO_PROFILER),
  resume_from_hdfs: fixed([null, false], 'checkpoints are local directories'),
  remove_previous_ckpt_in_save: ignored('max_actor_ckpt_to_keep says how many are kept'),
};
