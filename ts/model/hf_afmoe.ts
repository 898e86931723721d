// What config.json says of AFMoE, the family of Trinity: layers with a window turn and those that see all have no positions; norms before and behind
// attention and MLP, gates of attention, and experts by sigmoids beside a shared one.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder, typedWindows } from './hf_decoder';
import { correctedExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

export function afmoe(c: FamilyConfig<'afmoe'>, raw: Raw, where: string): NativeModelConfig {
  const { num_hidden_layers: layers, global_attn_every_n_layers: every } = c;
  const types =
    c.layer_types ??
    Array.from({ length: layers }, (_, i) =>
      (i + 1) % every === 0 ? 'full_attention' : 'sliding_attention',
    );
  const slidingWindows = typedWindows(types, layers, c.sliding_window, where);
  return {
    ...rmsDecoder('afmoe', c, raw, where),
    postNorms: true,
    qkNorm: true,
    attentionGate: true,
    gatesApart: true,
    slidingWindows,
    secondRopeLayers: slidingWindows.map((window) => window === 0),
    embeddingScale: c.mup_enabled ? Math.sqrt(c.hidden_size) : 1,
    ...correctedExperts(
      Array.from({ length: layers }, (_, i) => i >= c.num_dense_layers),
      {
        score: 'sigmoid',
        numExperts: c.num_experts,
        topK: c.num_experts_per_tok,
        intermediateSize: c.moe_intermediate_size,
        sharedIntermediateSize: c.moe_intermediate_size * c.num_shared_experts,
        wideLogits: false,
        routedScale: c.route_scale,
      },
    ),
  };
}
