// Options of AdamW and its schedule, below actor and critic; what of them `troupe sft` shares.
import { RUN_LIMITS } from '../../base/limits';
import { betas, choice, type Fixed, field, fixed, ignored, int, moved, num } from './field';

const OF_MUON = 'it belongs to the optimiser muon, which is not there';
const OF_WSD = 'it belongs to the schedule WSD, which is not there';
const FLOAT32 =
  'gradients are float32, master weights and moments too unless fsdp_config.model_dtype is bfloat16';

/** What of Megatron's own options is what happens here anyway. */
const UNCHANGED = {
  use_precision_aware_optimizer: [true, false],
  optimizer_cpu_offload: [false],
  optimizer_offload_fraction: [0],
  overlap_cpu_optimizer_d2h_h2d: [true, false],
};

/** Megatron's adam has the decoupled weight decay of AdamW. */
export const ADAMW = fixed(['AdamW', 'adam'], 'AdamW is the optimiser');

/** `offload`: key of moments on the host. */
export const overrideOptimizer = (offload: string): Fixed => ({
  ...fixed(
    [{}],
    `AdamW is the optimiser: give its options beside this section, and ${offload} for moments on the host`,
  ),
  only: UNCHANGED,
});

/** What verl's optimiser of Megatron has beside that of FSDP. */
export const megatronOptim = {
  lr_decay_style: moved('lr_scheduler_type'),
  min_lr: field(
    num(0, RUN_LIMITS.learningRate),
    0,
    'Final learning rate of the cosine, where it is not given as min_lr_ratio; at most lr.',
  ),
  lr_decay_steps: moved('total_training_steps'),
  lr_warmup_init: fixed([0], 'warm-up starts from 0'),
  lr_wsd_decay_style: ignored(OF_WSD),
  lr_wsd_decay_steps: ignored(OF_WSD),
  weight_decay_incr_style: ignored('weight decay is the same in every step, as in verl'),
  use_checkpoint_opt_param_scheduler: fixed(
    [false],
    'after a resume the schedule is the one of the configuration',
  ),
  use_precision_aware_optimizer: ignored(FLOAT32),
  main_grads_dtype: fixed(['fp32', 'float32'], FLOAT32),
  exp_avg_dtype: fixed(['fp32', 'float32'], FLOAT32),
  exp_avg_sq_dtype: fixed(['fp32', 'float32'], FLOAT32),
  use_layer_wise_distributed_optimizer: ignored(OF_MUON),
  muon_momentum: ignored(OF_MUON),
  muon_nesterov: ignored(OF_MUON),
  muon_split_qkv: ignored(OF_MUON),
  muon_scale_mode: ignored(OF_MUON),
  muon_coefficient_type: ignored(OF_MUON),
  muon_num_ns_steps: ignored(OF_MUON),
  muon_tp_mode: ignored(OF_MUON),
  muon_fp32_matmul_prec: ignored(OF_MUON),
  muon_extra_scale_factor: ignored(OF_MUON),
  muon_scalar_optimizer: ignored(OF_MUON),
  muon_match_adamw_update_rms: ignored(OF_MUON),
};

/** `role`: the section that holds grad_clip. */
export const optim = (lr: number, role: string) => ({
  lr: field(num(0, RUN_LIMITS.learningRate), lr, 'Peak learning rate of AdamW.'),
  betas: field(betas, [0.9, 0.999] as const, 'AdamW betas.'),
  weight_decay: field(num(0), 0.01, 'Decoupled weight decay, on every parameter.'),
  lr_scheduler_type: field(
    choice('constant', 'cosine'),
    'constant',
    'Learning-rate schedule; moves once per training step.',
  ),
  lr_warmup_steps: field(
    int(-1),
    -1,
    'Steps of linear warm-up; 0 or -1: lr_warmup_steps_ratio of all steps.',
  ),
  lr_warmup_steps_ratio: field(num(0, 1), 0, 'Warm-up as a share of all steps.'),
  total_training_steps: field(int(-1), -1, 'End of the schedule; -1: the steps of the run.'),
  min_lr_ratio: field(num(0, 1), 0, 'Final learning rate of the cosine as a share of lr.'),
  num_cycles: fixed([0.5], 'the cosine falls once, to min_lr_ratio'),
  warmup_style: moved('lr_scheduler_type'),
  optimizer: ADAMW,
  optimizer_impl: ignored('the optimiser is our own AdamW'),
  override_optimizer_config: overrideOptimizer('megatron.optimizer_offload of the role'),
  zero_indexed_step: fixed(
    [true],
    'schedules count from 0: with warm-up the first step has a learning rate of 0',
  ),
  init_lr_ratio: fixed([0], 'warm-up starts from 0'),
  clip_grad: moved(`${role}.grad_clip`),
  ...megatronOptim,
});
