import type { ResolvedConfig } from '../config/config';
import type { OptimOptions } from '../engine/engine_options';
import type { MuonOptions } from '../engine/muon_options';

/** The keys of an `optim` section that both programs share. */
export type OptimSection = ResolvedConfig['actor_rollout_ref']['actor']['optim'];

/** Nothing with AdamW. */
export function muonOptions(optim: OptimSection): { muon?: MuonOptions } {
  if (optim.optimizer !== 'muon') return {};
  const beta = optim.betas[0];
  return {
    muon: {
      momentum: optim.muon_momentum,
      nesterov: optim.muon_nesterov,
      scaleMode: optim.muon_scale_mode,
      extraScaleFactor: optim.muon_match_adamw_update_rms
        ? Math.sqrt((1 - beta) / (1 + beta))
        : optim.muon_extra_scale_factor,
      coefficientType: optim.muon_coefficient_type,
      numNsSteps: optim.muon_num_ns_steps,
      dtype: optim.muon_fp32_matmul_prec === 'medium' ? 'bfloat16' : 'float32',
    },
  };
}

/** `totalSteps`: of the run, when the section does not say where its schedule ends. `gradClip` 0: no clipping. */
export function optimOptions(optim: OptimSection, gradClip: number, totalSteps: number): OptimOptions {
  const total = optim.total_training_steps > 0 ? optim.total_training_steps : totalSteps;
  const warmup =
    optim.lr_warmup_steps > 0 ? optim.lr_warmup_steps : Math.floor(optim.lr_warmup_steps_ratio * total);
  return {
    lr: optim.lr,
    betas: [...optim.betas],
    weightDecay: optim.weight_decay,
    gradClip: gradClip === 0 ? Number.MAX_VALUE : gradClip,
    schedule: optim.lr_scheduler_type,
    warmupSteps: warmup,
    totalSteps: total,
    minLrRatio: optim.min_lr > 0 ? optim.min_lr / optim.lr : optim.min_lr_ratio,
    ...muonOptions(optim),
  };
}
