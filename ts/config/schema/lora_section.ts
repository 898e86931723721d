import { z } from 'zod';
import { above, count, field, fixed, ignored, needs, orNull, str, strings, type ValueType } from './field';

/** What Megatron calls the linear layers of a block, by the names that Hugging Face gives them; those of its plain and of its canonical LoRA. */
export const MEGATRON_MODULES: Readonly<Record<string, readonly string[]>> = {
  linear_qkv: ['q_proj', 'k_proj', 'v_proj'],
  linear_q: ['q_proj'],
  linear_k: ['k_proj'],
  linear_v: ['v_proj'],
  linear_proj: ['o_proj'],
  linear_fc1: ['gate_proj', 'up_proj'],
  linear_fc1_gate: ['gate_proj'],
  linear_fc1_up: ['up_proj'],
  linear_fc2: ['down_proj'],
};

const INSTEAD = 'give lora_rank and the keys beside it in place of this section';

const megatronModules: ValueType<readonly string[]> = {
  name: `a list of ${Object.keys(MEGATRON_MODULES).join(', ')} (for other layers ${INSTEAD})`,
  schema: z.array(z.string().refine((name) => Object.hasOwn(MEGATRON_MODULES, name))).min(1),
};

/** verl's names of the same for Megatron; derived/megatron_lora.ts. */
export const megatronLora = {
  rank: field(
    count('loraRank', 0),
    0,
    'verl’s name of lora_rank for Megatron, whatever the engine: where it is not 0, this section says what lora_rank and the keys beside it are.',
  ),
  alpha: field(above(0), 32, 'With rank: lora_alpha.'),
  target_modules: field(
    megatronModules,
    ['linear_qkv', 'linear_proj', 'linear_fc1', 'linear_fc2'],
    'With rank: target_modules, by Megatron’s names: q_proj, k_proj and v_proj; o_proj; gate_proj and up_proj; down_proj; the list of all of them is all-linear.',
  ),
  adapter_path: field(orNull(str), null, 'With rank: lora_adapter_path, a directory in PEFT’s format.'),
  type: fixed(
    ['lora', 'canonical_lora'],
    'adapters are plain LoRA, one for each of q, k, v, gate and up: give lora',
  ),
  dropout: fixed([0], 'adapters have no dropout: give 0'),
  dropout_position: ignored('there is no dropout'),
  exclude_modules: fixed([[]], `modules are left out by exclude_modules of the model: ${INSTEAD}`),
  lora_A_init_method: ignored('A starts from a uniform distribution, as in PEFT'),
  lora_B_init_method: fixed(
    ['zero'],
    'B starts as 0, so that training starts from the model itself: give zero',
  ),
  merge: ignored('generation always takes the weights that training has'),
  dtype: ignored('adapters have float32 masters, and are computed in the dtype of the engine'),
  a2a_experimental: ignored('how ranks exchange the rows of an adapter changes nothing'),
  fully_sharded_loras: ignored('how an inference engine cuts adapters over its ranks changes nothing'),
  freeze_vision_model: ignored('adapters are on the decoder; a tower for images beside them is frozen'),
  freeze_vision_projection: ignored('adapters are on the decoder; a tower for images beside them is frozen'),
  freeze_language_model: ignored('it belongs to vlm_lora: plain LoRA freezes the model'),
};

/** verl's keys of LoRA in a model section; docs/lora.md. */
export const lora = {
  lora_rank: field(
    count('loraRank', 0),
    0,
    'Rank of LoRA adapters, which are then trained instead of the weights; 0: none.',
  ),
  lora_alpha: field(above(0), 16, 'Adapters are scaled by lora_alpha / lora_rank.'),
  target_modules: field(
    strings,
    ['all-linear'],
    'Modules that get an adapter: all-linear, or names or their ends, such as [q_proj, v_proj].',
  ),
  exclude_modules: field(orNull(strings), null, 'Names of modules, or their ends, that get no adapter.'),
  target_parameters: needs('adapters on parameters that are no linear layers', []),
  lora_adapter_path: field(
    orNull(str),
    null,
    'Directory of a PEFT adapter to start from; rank, alpha and modules are the adapter’s.',
  ),
  lora: megatronLora,
};
