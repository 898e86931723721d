// What config.json says of GLM-4 and GLM-4-0414, where a half of each head turns, in pairs side by side, the latter with norms behind attention and MLP,
// too, and of GLM-4.5; and of Solar Open, whose layers all have its experts.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import { behindDense, deepseekExperts } from './hf_experts';
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

export function glm4Moe(c: FamilyConfig<'glm4_moe'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...rmsDecoder('glm4_moe', c, raw, where, { partialFactor: 0.5 }),
    qkNorm: c.use_qk_norm,
    qkvBias: c.attention_bias,
    ...deepseekExperts(c, behindDense(c), where),
  };
}

export function solarOpen(c: FamilyConfig<'solar_open'>, raw: Raw, where: string): NativeModelConfig {
  const { moe_intermediate_size: intermediate_size } = c;
  return {
    ...rmsDecoder('solar_open', { ...c, intermediate_size }, raw, where, { defaultTheta: 1e6 }),
    qkvBias: c.attention_bias,
    ...deepseekExperts(c, new Array(c.num_hidden_layers).fill(true), where),
  };
}
