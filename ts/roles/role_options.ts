import type { ResolvedConfig, ResolvedSftConfig } from '../config/config';
import type { WorkerGroup } from '../controller/worker_group';
import type { EngineOptions } from '../engine/engine_options';
import type { Reduction } from '../native/bridge';
import { parallelOptions } from './fsdp_options';
import { optimOptions } from './optim_options';
import type { RoleSettings } from './role_settings';

/** Names of engines in their workers. */
const ENGINE_NAMES = {
  actor: 'actor',
  reference: 'ref',
  rollout: 'rollout',
  critic: 'critic',
  'reward model': 'reward_model',
  teacher: 'teacher',
} as const;

/**
 * The options of a role's engine in workers that are there, for inference: those that learn take {@link trainedOptions}, too. `reduction`:
 * what the role's own comes to.
 */
export function engineOptions(
  role: RoleSettings,
  group: WorkerGroup,
  { trainer }: ResolvedConfig | ResolvedSftConfig,
  reduction: Reduction = 'micro_batch',
): EngineOptions {
  const peakTflops = 'peak_tflops' in trainer ? trainer.peak_tflops : null;
  return {
    name: ENGINE_NAMES[role.name],
    model: role.model,
    group,
    ...parallelOptions(role.fsdp, role.ulysses, reduction, role.layout),
    ...(role.dtype ? { dtype: role.dtype } : {}),
    maxTokensPerMicroBatch: role.tokensPerRank * role.ulysses * (role.layout.cp ?? 1),
    ...(peakTflops === null ? {} : { peakTflops }),
    ...(role.maxPositionEmbeddings === null ? {} : { maxPositionEmbeddings: role.maxPositionEmbeddings }),
    ...(role.readsImages ? { readsImages: true } : {}),
    seed: trainer.seed,
  };
}

/** What a role that learns has besides; `totalSteps`: see optimOptions. */
export function trainedOptions(
  { gradientCheckpointing, activationOffload, lora, masterDtype, optim, tokenizer }: RoleSettings,
  totalSteps: number,
): Pick<
  EngineOptions,
  | 'activationOffload'
  | 'freezeVisionTower'
  | 'gradientCheckpointing'
  | 'lora'
  | 'masterDtype'
  | 'mtp'
  | 'optim'
  | 'savedTokenizer'
> {
  return {
    gradientCheckpointing,
    ...(activationOffload ? { activationOffload } : {}),
    ...(masterDtype === 'bfloat16' ? { masterDtype } : {}),
    optim: optim === null ? null : optimOptions(optim, totalSteps),
    ...lora,
    ...(tokenizer === null ? {} : { savedTokenizer: tokenizer }),
  };
}
