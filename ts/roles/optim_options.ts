import { checkDecay, warmupSteps } from '../config/checks/optim_checks';
import type { ResolvedConfig } from '../config/config';
import type { OptimOptions } from '../engine/engine_options';
import type { MuonOptions } from '../engine/muon_options';
import type { ScheduleOptions } from '../engine/schedule_options';

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

/** What a role that learns is told of its optimiser. */
export interface OptimSettings {
  section: OptimSection;
  /** Where the section stands. */
  key: string;
  /** 0: no clipping. */
  gradClip: number;
}

/**
 * `totalSteps`: of the run, when the section does not say where its schedule ends.
 * @throws ConfigError when so many are fewer than the schedule needs
 */
export function optimOptions(
  { section: optim, key, gradClip }: OptimSettings,
  totalSteps: number,
): OptimOptions {
  const total = optim.total_training_steps > 0 ? optim.total_training_steps : totalSteps;
  checkDecay(key, optim, total);
  return {
    lr: optim.lr,
    betas: [...optim.betas],
    weightDecay: optim.weight_decay,
    gradClip: gradClip === 0 ? Number.MAX_VALUE : gradClip,
    ...scheduleOptions(optim, total),
    ...muonOptions(optim),
  };
}

/** Without the keys that the schedule does not read. */
function scheduleOptions(optim: OptimSection, totalSteps: number): ScheduleOptions {
  const schedule = optim.lr_scheduler_type;
  const warmup = warmupSteps(optim, totalSteps);
  return {
    schedule,
    warmupSteps: warmup,
    totalSteps,
    minLrRatio: share(optim.min_lr, optim.lr, optim.min_lr_ratio),
    ...(warmup > 0 ? { initLrRatio: share(optim.lr_warmup_init, optim.lr, optim.init_lr_ratio) } : {}),
    ...(schedule === 'cosine' ? { numCycles: optim.num_cycles } : {}),
    ...(schedule === 'WSD' && optim.lr_wsd_decay_steps !== null
      ? { wsdDecaySteps: optim.lr_wsd_decay_steps, wsdDecayStyle: optim.lr_wsd_decay_style }
      : {}),
    zeroIndexedStep: optim.zero_indexed_step,
  };
}

/** Of `lr`: `rate` where it is given, else `ratio`. */
const share = (rate: number, lr: number, ratio: number): number => (rate > 0 ? rate / lr : ratio);
