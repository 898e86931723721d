import { above, count, field, ignored, needs, orNull, str, strings } from './field';

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
  lora: ignored('concerns Megatron; lora_rank and the keys beside it hold'),
};
