// The adapters of a role, from the shape of its model alone.
import { resolveLoraOptions } from '../engine/lora_options';
import { planLora } from '../engine/plan_lora';
import type { Lora } from '../model/adapter_sites';
import { tensorMapping } from '../model/tensor_names';
import type { NativeModelConfig } from '../native/bridge';
import type { RoleSettings } from './role_settings';

/**
 * As the engine resolves them; null: its weights are trained.
 * @throws TroupeError INVALID_ARGUMENT naming the key and the module that matches nothing, INVALID_MODEL for an adapter that does not fit
 */
export function roleAdapters(
  { model: dir, lora: { lora }, keys }: RoleSettings,
  config: NativeModelConfig,
): Lora | null {
  if (lora === undefined) return null;
  const model = { dir, config, mapping: tensorMapping(config) };
  return planLora(keys.lora, model, resolveLoraOptions(keys.lora, lora));
}
