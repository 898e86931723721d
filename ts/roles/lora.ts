import type { ResolvedConfig } from '../config/config';
import { usesLora } from '../config/derived/roles';
import type { EngineOptions } from '../engine/engine_options';

type ModelConfig = Pick<
  ResolvedConfig['critic']['model'],
  'lora_rank' | 'lora_alpha' | 'target_modules' | 'exclude_modules' | 'lora_adapter_path'
>;

/** The engine's option for verl's keys; nothing when LoRA is off. With an adapter to start from, rank alone is compared. */
export function loraOptions(model: ModelConfig): Pick<EngineOptions, 'lora'> {
  if (!usesLora(model)) return {};
  const { lora_rank: rank, lora_adapter_path: adapter, target_modules: names } = model;
  if (adapter !== null) return { lora: { adapter, ...(rank > 0 ? { rank } : {}) } };
  const all = names.length === 1 && names[0] === 'all-linear';
  return {
    lora: {
      rank,
      alpha: model.lora_alpha,
      targetModules: all ? 'all-linear' : [...names],
      excludeModules: [...(model.exclude_modules ?? [])],
    },
  };
}
