// What config.json says of Hy3: norms of each head, and experts by sigmoids beside shared ones.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import { correctedExperts, typedExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

export function hyV3(c: FamilyConfig<'hy_v3'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...rmsDecoder('hy_v3', c, raw, where, { defaultTheta: 11_158_840 }),
    qkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    ...correctedExperts(typedExperts(c, 1, where), {
      score: 'sigmoid',
      numExperts: c.num_experts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.moe_intermediate_size,
      sharedIntermediateSize: c.moe_intermediate_size * c.num_shared_experts,
      wideLogits: true,
      routedScale: c.router_scaling_factor,
    }),
  };
}
