// Options of the optimisers, below actor and critic; what of them `troupe sft` shares.
import { RUN_LIMITS } from '../../base/limits';
import { MUON_COEFFICIENTS, MUON_SCALES } from '../../base/optimiser_names';
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
import { scheduleKeys } from './schedule_keys';

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
    choice(...MUON_SCALES),
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
  muon_num_ns_steps: field(
    int(1, 100),
    5,
    'Its iterations; of quintic at most 5 or a multiple, of aol at most 4.',
  ),
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
    `the optimisers are our own: give their options beside this section, and ${offload} for moments on the host`,
  ),
  only: UNCHANGED,
});

/** What verl's optimiser of Megatron has beside that of FSDP. */
export const megatronOptim = {
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
  ...scheduleKeys('constant', 0),
  ...optimizer,
  override_optimizer_config: overrideOptimizer('megatron.optimizer_offload of the role'),
  clip_grad: moved(`${role}.grad_clip`),
  ...megatronOptim,
});
