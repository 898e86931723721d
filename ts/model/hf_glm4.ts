// What config.json says of GLM-4, and of GLM-4-0414, which has norms behind attention and MLP, too: a half of each head turns, in pairs side by side.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import type { FamilyConfig } from './hf_schema';

export function glm(
  family: 'glm' | 'glm4',
  c: FamilyConfig<'glm'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  return {
    ...rmsDecoder(family, c, raw, where, { partialFactor: 0.5 }),
    ropePairs: true,
    qkvBias: c.attention_bias,
  };
}

export function glm4(c: FamilyConfig<'glm4'>, raw: Raw, where: string): NativeModelConfig {
  return { ...glm('glm4', c, raw, where), postNorms: true };
}
