// What config.json says of MiniMax-M2: a part of each head turns, behind norms over all heads; experts by sigmoids.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import { correctedExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

export function minimaxM2(c: FamilyConfig<'minimax_m2'>, raw: Raw, where: string): NativeModelConfig {
  // Published files say it as a number of each head's numbers.
  const share = c.rotary_dim === null ? {} : { partial_rotary_factor: c.rotary_dim / c.head_dim };
  return {
    ...rmsDecoder('minimax_m2', c, { ...share, ...raw }, where, {
      defaultTheta: 5e6,
      partialFactor: 1,
    }),
    wholeQkNorm: true,
    ...correctedExperts(new Array(c.num_hidden_layers).fill(true), {
      score: 'sigmoid',
      numExperts: c.num_local_experts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.intermediate_size,
      sharedIntermediateSize: 0,
      wideLogits: false,
    }),
  };
}
