// What config.json says of CWM: Llama with a window on three layers of four.
import type { NativeModelConfig } from '../native/bridge';
import { isObject, type Raw, rmsDecoder, typedWindows } from './hf_decoder';
import type { FamilyConfig } from './hf_schema';
import { givenRope } from './rope';

/** Of the class of transformers, where config.json says nothing of RoPE but perhaps rope_theta, which does not count then. */
const USUAL_ROPE: Raw = {
  rope_type: 'llama3',
  rope_theta: 1e6,
  factor: 16,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 8192,
};

export function cwm(c: FamilyConfig<'cwm'>, raw: Raw, where: string): NativeModelConfig {
  const types =
    c.layer_types ??
    Array.from({ length: c.num_hidden_layers }, (_, i) =>
      i % 4 === 0 ? 'full_attention' : 'sliding_attention',
    );
  const turns = givenRope(raw).key === 'rope_scaling' || isObject(raw.rope_parameters);
  return {
    ...rmsDecoder('cwm', c, turns ? raw : { ...raw, rope_parameters: USUAL_ROPE }, where, {
      defaultTheta: 1e6,
    }),
    mlpBias: c.mlp_bias,
    slidingWindows: typedWindows(types, c.num_hidden_layers, c.sliding_window, where),
  };
}
