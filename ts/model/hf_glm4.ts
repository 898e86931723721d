// What config.json says of GLM-4 (0414): a half of each head turns, in pairs side by side, between norms before and behind.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import type { FamilyConfig } from './hf_schema';

export function glm4(c: FamilyConfig<'glm4'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...rmsDecoder('glm4', c, raw, where, { partialFactor: 0.5 }),
    postNorms: true,
    ropePairs: true,
    qkvBias: c.attention_bias,
  };
}
