// Options of AdamW and its schedule, below actor and critic; what of them `troupe sft` shares.
import { RUN_LIMITS } from '../../base/limits';
import { MUON_COEFFICIENTS } from '../../base/muon_coefficients';
import {
  above,
  betas,
  bool,
  choice,
  type Fixed,
  field,
  fixed,
  ignored,
  int,
  momentum,
  moved,
  num,
} from './field';

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

/** What the optimiser is, and Muon's own keys. */
export const optimizer = {
  optimizer: field(
    // Megatron's adam has the decoupled weight decay of AdamW.
    choice('AdamW', 'adam', 'muon'),
    'AdamW',
    'AdamW (adam: the same), or muon: the weights of linear layers by Muon, all else by AdamW.',
  ),
  optimizer_impl: ignored('the optimisers are our own'),
  use_layer_wise_distributed_optimizer: ignored('what is kept of Muon is sharded as everything is'),
  use_layer_wise_param_layout: ignored('what is kept of Muon is sharded as everything is'),
  muon_momentum: field(momentum, 0.95, 'Of Muon’s moving average of gradients.'),
  muon_nesterov: field(bool, false, 'The direction is that of the next momentum.'),
  muon_split_qkv: fixed([true], 'q, k and v are orthogonalised each by itself, and so are gate and up'),
  muon_scale_mode: field(
    choice('spectral', 'unit_rms_norm', 'shape_scaling'),
    'spectral',
    'Size of a step of a matrix [out, in]: sqrt(max(out, in)), sqrt(out / in), sqrt(max(1, out / in)).',
  ),
  muon_extra_scale_factor: field(above(0), 1, 'Beside it; with 1 a step is several times that of AdamW.'),
  muon_match_adamw_update_rms: field(
    bool,
    false,
    'Steps as long as AdamW’s: muon_extra_scale_factor is sqrt((1 - b) / (1 + b)) with the first of betas.',
  ),
  muon_coefficient_type: field(
    choice(...MUON_COEFFICIENTS),
    'quintic',
    'Polynomials of the Newton-Schulz iteration.',
  ),
  muon_num_ns_steps: field(int(1, 100), 5, 'Its iterations; of quintic at most 5, of aol 4, or a multiple.'),
  muon_fp32_matmul_prec: field(
    choice('medium', 'high', 'highest'),
    'medium',
    'Of its products: medium bfloat16, else float32.',
  ),
  muon_tp_mode: ignored('matrices are orthogonalised whole, however they are spread'),
  muon_scalar_optimizer: fixed(['adam'], 'what is no weight of a linear layer moves by AdamW'),
};

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
};

/** `role`: the section that holds grad_clip. */
export const optim = (lr: number, role: string) => ({
  lr: field(num(0, RUN_LIMITS.learningRate), lr, 'Peak learning rate.'),
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
  ...optimizer,
  override_optimizer_config: overrideOptimizer('megatron.optimizer_offload of the role'),
  zero_indexed_step: fixed(
    [true],
    'schedules count from 0: with warm-up the first step has a learning rate of 0',
  ),
  init_lr_ratio: fixed([0], 'warm-up starts from 0'),
  clip_grad: moved(`${role}.grad_clip`),
  ...megatronOptim,
});
