import { RUN_LIMITS } from '../../base/limits';
import { imageKey, processorSection } from './data_section';
import { faultSection } from './fault_section';
import {
  betas,
  bool,
  choice,
  count,
  dtype,
  everySteps,
  field,
  fixed,
  ignored,
  int,
  intOrOff,
  mapping,
  moved,
  needs,
  num,
  orNull,
  pathName,
  type Resolved,
  required,
  str,
  strings,
} from './field';
import { launcherSection } from './launcher_section';
import { loggingSection } from './logging_section';
import { lora } from './lora_section';
import { megatronOptim, optimizer, overrideOptimizer } from './optim_section';
import { interval, sftGlobalProfiler, sftProfilerSection } from './profiler_section';
import { FUSED, TORCH_ONLY } from './reasons';
import {
  activationOffload,
  fsdpConfig,
  mixedPrecision,
  mtp,
  overrideConfig,
  readImages,
  sftRouterZLoss,
  sharding,
} from './role_parts';
import { scheduleKeys } from './schedule_keys';
import { engineSection } from './sft_engine_section';
import { stagingSection } from './staging_section';
import { COLLECTIVE_TIMEOUT, workerTimeouts } from './worker_section';

const NO_ROLLOUT = ignored('examples are given: nothing is generated');

/** The configuration tree of `troupe sft`. */
export const sftSchema = {
  data: {
    train_files: required(strings, 'Training examples: parquet, JSON or JSONL files.'),
    val_files: field(orNull(strings), null, 'Validation examples; null: none.'),
    messages_key: field(
      orNull(str),
      null,
      'Column with a conversation (loss on assistant turns); null: prompt_key and response_key.',
    ),
    prompt_key: field(str, 'prompt', 'Column of the prompt.'),
    response_key: field(str, 'response', 'Column of the response.'),
    prompt_dict_keys: field(
      orNull(strings),
      null,
      'Where the prompt is inside its column, key by key; null: the column itself.',
    ),
    apply_chat_template: field(
      bool,
      false,
      'Render a prompt that is text as one turn of the user; false: it is tokenized as it stands.',
    ),
    response_dict_keys: field(orNull(strings), null, 'As prompt_dict_keys, for the response.'),
    tools_key: field(
      orNull(str),
      'tools',
      'Column with tool schemas (a list, or JSON of one) for the chat template of a conversation, if there is one.',
    ),
    enable_thinking_key: field(
      orNull(str),
      'enable_thinking',
      'Column whose true or false becomes enable_thinking of the chat template, if there is one.',
    ),
    train_batch_size: field(count('sequences'), 256, 'Examples per optimiser step.'),
    max_length: field(
      count('tokens'),
      1024,
      'Tokens per example. Where that is more than a micro-batch or the model can take, every row is held against these before the run, reached by it or not.',
    ),
    truncation: field(choice('error', 'left', 'right'), 'error', 'What to do with longer examples.'),
    max_token_len_per_gpu: field(count('batchTokens'), 8192, 'Packing capacity: tokens per micro-batch.'),
    train_max_samples: field(
      intOrOff,
      -1,
      'Use at most so many rows, drawn by seed when shuffling; -1: all.',
    ),
    val_max_samples: field(intOrOff, -1, 'Use at most so many rows; -1: all.'),
    micro_batch_size: ignored('micro-batches are always packed by token count (data.max_token_len_per_gpu)'),
    micro_batch_size_per_gpu: ignored(
      'micro-batches are always packed by token count (data.max_token_len_per_gpu)',
    ),
    pad_mode: ignored('sequences are never padded'),
    multiturn: {
      enable: ignored('data.messages_key selects conversations'),
      messages_key: moved('data.messages_key'),
      tools_key: moved('data.tools_key'),
      enable_thinking_key: moved('data.enable_thinking_key'),
    },
    ignore_input_ids_mismatch: ignored(
      'turns are tokenized one by one; a template that rewrites them is refused',
    ),
    num_workers: ignored('examples are tokenized once, before training'),
    enable_thinking_default: needs('a default of enable_thinking', 'none'),
    chat_template: moved('model.custom_chat_template'),
    custom_cls: {
      path: needs('a data set class in Python'),
      name: ignored('there is no custom data set'),
    },
    balance_dp_token: ignored('batches are balanced over the ranks by their work always'),
    use_shm: ignored('files are read where they are'),
    use_dynamic_bsz: ignored('micro-batches are always packed by token count (data.max_token_len_per_gpu)'),
    shuffle: field(bool, true, 'Draw the examples in a new order every epoch.'),
    seed: field(orNull(int()), null, 'Seed of the order; null: trainer.seed.'),
    apply_chat_template_kwargs: field(mapping, {}, 'Further variables of the chat template.'),
    image_key: imageKey,
    mm_processor_kwargs: processorSection,
  },
  model: {
    path: required(str, 'Hugging Face directory.'),
    partial_pretrain: moved('model.path'),
    read_images: readImages,
    trust_remote_code: ignored('models are data: no code is run from a model directory'),
    external_lib: fixed([null], 'no Python is involved'),
    fsdp_config: {
      ...sharding,
      gradient_reduction: field(
        choice('micro_batch', 'mini_batch'),
        'micro_batch',
        'When sharded gradients are summed over the ranks. mini_batch: once per optimiser step; fewer bytes are sent, and whole float32 ' +
          'gradients are kept.',
      ),
      cpu_offload: moved('model.fsdp_config.offload_policy'),
      offload_params: ignored('offload_policy offloads everything, param_offload parameters alone'),
      model_dtype: fsdpConfig.model_dtype,
      mixed_precision: mixedPrecision,
      use_orig_params: ignored(TORCH_ONLY),
      use_torch_compile: ignored(TORCH_ONLY),
      wrap_policy: ignored(TORCH_ONLY),
    },
    strategy: moved('engine.strategy'),
    ...lora,
    use_liger: ignored('the head is always fused (linear_log_prob)'),
    use_remove_padding: ignored('sequences are always packed without padding'),
    use_fused_kernels: ignored(FUSED),
    fused_kernel_options: ignored(FUSED),
    use_shm: ignored('weights are read once per worker'),
    tiled_mlp: ignored('memory is bounded by the packing capacity'),
    hf_config_path: needs('a config.json beside the model directory'),
    override_config: overrideConfig,
    mtp: { ...mtp, enable_rollout: NO_ROLLOUT, num_speculative_tokens: NO_ROLLOUT },
    router_z_loss_coef: sftRouterZLoss,
    tokenizer_path: field(orNull(str), null, 'Directory with tokenizer.json; null: the model directory.'),
    custom_chat_template: field(orNull(str), null, 'Jinja chat template that replaces the tokenizer’s.'),
    enable_gradient_checkpointing: field(bool, true, 'Recompute activations in the backward pass.'),
    enable_activation_offload: activationOffload,
    dtype: field(orNull(dtype), null, 'Compute dtype; null: float32 on cpu, bfloat16 on cuda.'),
  },
  optim: {
    lr: field(num(0, RUN_LIMITS.learningRate), 1e-5, 'Peak learning rate.'),
    warmup_steps_ratio: moved('lr_warmup_steps_ratio'),
    lr_scheduler: moved('lr_scheduler_type'),
    betas: field(betas, [0.9, 0.95] as const, 'AdamW betas.'),
    weight_decay: field(num(0), 0.01, 'Decoupled weight decay, on every parameter.'),
    clip_grad: field(num(0), 1, 'Global gradient norm at which gradients are clipped; 0: not clipped.'),
    ...scheduleKeys('cosine', 0.1),
    ...optimizer,
    override_optimizer_config: overrideOptimizer('engine.optimizer_offload'),
    ...megatronOptim,
  },
  ulysses_sequence_parallel_size: field(
    count('ranks'),
    1,
    'Neighbouring workers that share micro-batches, of so many times data.max_token_len_per_gpu tokens: a divisor of the workers and ' +
      'of the attention heads.',
  ),
  use_remove_padding: ignored('sequences are always packed without padding'),
  engine: engineSection,
  checkpoint: ignored('model, optimiser and trainer state are always saved'),
  profiler: sftProfilerSection,
  global_profiler: sftGlobalProfiler,
  trainer: {
    total_epochs: field(count('passes'), 1, 'Passes over the training examples.'),
    total_training_steps: field(
      orNull(count('steps')),
      null,
      'Ends the run earlier or later than total_epochs.',
    ),
    project_name: field(pathName, 'troupe', 'For loggers, and for directories, where a/b is b within a.'),
    experiment_name: field(pathName, 'sft', 'For loggers, and for directories, where a/b is b within a.'),
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
    default_local_dir: field(
      orNull(str),
      null,
      'Run directory; null, as nothing after =: checkpoints/{project_name}/{experiment_name}.',
    ),
    save_freq: field(
      everySteps,
      -1,
      'Steps between checkpoints, and one after the last step; -1, 0: none; after_each_epoch: those of a pass over the data. The final model is written anyway.',
    ),
    test_freq: field(
      everySteps,
      -1,
      'Steps between validations, and one after the last step; -1, 0: none; after_each_epoch: as above.',
    ),
    max_ckpt_to_keep: field(orNull(int(1)), null, 'Newest checkpoints to keep; null: all.'),
    resume_mode: field(
      choice('auto', 'disable'),
      'auto',
      'auto: from the newest checkpoint of default_local_dir.',
    ),
    resume_with_changes: field(
      bool,
      false,
      'Resume although the checkpoint is of a run that learned something else: with another model or other data.',
    ),
    max_actor_ckpt_to_keep: moved('trainer.max_ckpt_to_keep'),
    resume_from_path: needs('a start from a named checkpoint'),
    profile_interval: field(
      interval,
      [-1, -1],
      'First and last step, from 1, that are profiled, into one trace; [-1, -1]: none.',
    ),
    checkpoint: ignored('model, optimiser and trainer state are always saved'),
    default_hdfs_dir: fixed([null], 'checkpoints are local directories'),
    balance_batch: ignored('batches are balanced over the ranks by their work always'),
    nnodes: field(count('ranks'), 1, 'Machines.'),
    launcher: launcherSection,
    fault_tolerance: faultSection,
    checkpoint_staging: stagingSection,
    n_gpus_per_node: field(
      count('ranksPerMachine'),
      1,
      'Worker processes that share the model and the work.',
    ),
    device: field(
      choice('auto', 'cpu', 'cuda'),
      'auto',
      'Where the engine runs; auto: cuda where the native addon has it and a GPU is visible, else cpu. Printed at the start.',
    ),
    num_threads: field(
      orNull(count('threads')),
      null,
      'LibTorch threads per worker; null: LibTorch’s choice.',
    ),
    worker_timeouts: workerTimeouts,
    nccl_timeout: COLLECTIVE_TIMEOUT,
    seed: field(int(0), 1, 'Seed of everything random.'),
  },
  logging: loggingSection,
  hydra: ignored('there is no Hydra'),
  defaults: fixed(
    [[], ['_self_']],
    'configuration groups are not composed here: write all keys into one file',
  ),
};

export type ResolvedSftConfig = Resolved<typeof sftSchema> & {
  readonly trainer: { readonly default_local_dir: string };
};
