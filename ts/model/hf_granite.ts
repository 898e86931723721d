// What config.json says of Granite 3, dense and with experts: embeddings, scores, layers and logits each have a factor.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import { mixtralExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

export function granite(c: FamilyConfig<'granite'>, raw: Raw, where: string): NativeModelConfig {
  return { ...scaled('granite', c, raw, where), mlpBias: c.mlp_bias };
}

export function graniteMoe(c: FamilyConfig<'granitemoe'>, raw: Raw, where: string): NativeModelConfig {
  return { ...scaled('granitemoe', c, raw, where), ...mixtralExperts(c) };
}

/** Experts beside one that all tokens share. */
export function graniteMoeShared(
  c: FamilyConfig<'granitemoeshared'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  const { moe, moeLayers } = mixtralExperts(c);
  return {
    ...scaled('granitemoeshared', c, raw, where),
    moe: { ...moe, sharedIntermediateSize: c.shared_intermediate_size, sharedGate: false },
    moeLayers,
  };
}

function scaled(
  family: 'granite' | 'granitemoe' | 'granitemoeshared',
  c: FamilyConfig<'granite'> | FamilyConfig<'granitemoe'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  return {
    ...rmsDecoder(family, c, raw, where),
    ...graniteFactors(c),
  };
}

/** Also of Granite 4, with the biases of attention. */
export const graniteFactors = (
  c: Pick<
    FamilyConfig<'granitemoe'>,
    | 'embedding_multiplier'
    | 'attention_multiplier'
    | 'residual_multiplier'
    | 'logits_scaling'
    | 'attention_bias'
  >,
) => ({
  embeddingScale: c.embedding_multiplier,
  attentionScale: c.attention_multiplier,
  residualScale: c.residual_multiplier,
  logitsScaling: c.logits_scaling,
  qkvBias: c.attention_bias,
  outputBias: c.attention_bias,
});
