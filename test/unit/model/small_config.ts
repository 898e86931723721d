import { resolveModelConfig } from '../../../ts/model/hf_config';
import type { NativeModelConfig } from '../../../ts/native/bridge';

export const resolve = (raw: object, head: 'lm' | 'value' = 'lm'): NativeModelConfig =>
  resolveModelConfig(raw, head, 'config.json').native;

/** Sizes of a small model, for a config.json of any family. */
export const small = {
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  num_hidden_layers: 4,
};
