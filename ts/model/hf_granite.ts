// What config.json says of Granite 3, dense and with experts: embeddings, scores, layers and logits each have a factor.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import { SOFTMAX_EXPERTS } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

export function granite(c: FamilyConfig<'granite'>, raw: Raw, where: string): NativeModelConfig {
  return { ...scaled('granite', c, raw, where), mlpBias: c.mlp_bias };
}

/** Its softmax over the chosen experts' logits is that over all of them, divided by the sum of the chosen ones. */
export function graniteMoe(c: FamilyConfig<'granitemoe'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...scaled('granitemoe', c, raw, where),
    moe: {
      ...SOFTMAX_EXPERTS,
      numExperts: c.num_local_experts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.intermediate_size,
      normalizeTopK: true,
    },
    moeLayers: new Array(c.num_hidden_layers).fill(true),
  };
}

function scaled(
  family: 'granite' | 'granitemoe',
  c: FamilyConfig<'granite'> | FamilyConfig<'granitemoe'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  return {
    ...rmsDecoder(family, c, raw, where),
    embeddingScale: c.embedding_multiplier,
    attentionScale: c.attention_multiplier,
    residualScale: c.residual_multiplier,
    logitsScaling: c.logits_scaling,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
  };
}
