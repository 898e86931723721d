// What config.json says of ERNIE 4.5: all of a head turns, in pairs side by side.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import { correctedExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

const THETA = 500_000;

export function ernie(c: FamilyConfig<'ernie4_5'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...rmsDecoder('ernie4_5', c, raw, where, { defaultTheta: THETA }),
    ropePairs: true,
    qkvBias: c.use_bias,
    outputBias: c.use_bias,
    mlpBias: c.use_bias,
  };
}

/** Experts are chosen by the softmax of all of them with a correction, and weighted by it without, divided by their sum. */
export function ernieMoe(c: FamilyConfig<'ernie4_5_moe'>, raw: Raw, where: string): NativeModelConfig {
  const { moe_layer_start_index: first, moe_layer_end_index: end, moe_layer_interval: interval } = c;
  const last = end === -1 ? c.num_hidden_layers - 1 : end;
  const moeLayers = Array.from(
    { length: c.num_hidden_layers },
    (_, i) => (i + 1) % interval === 0 && i >= first && i <= last,
  );
  return {
    ...rmsDecoder('ernie4_5_moe', c, raw, where, { defaultTheta: THETA }),
    ropePairs: true,
    ...correctedExperts(moeLayers, {
      score: 'softmax',
      numExperts: c.moe_num_experts,
      topK: c.moe_k,
      intermediateSize: c.moe_intermediate_size,
      sharedIntermediateSize: c.moe_intermediate_size * c.moe_num_shared_experts,
      wideLogits: true,
    }),
  };
}
