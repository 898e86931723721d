// What config.json says of Mistral: the window, where there is one, is on every layer.
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import { everyLayer, invalid, type Raw, rmsDecoder } from './hf_decoder';
import type { FamilyConfig } from './hf_schema';
import { givenRope } from './rope';

export function mistral(
  family: 'mistral' | 'ministral3',
  c: FamilyConfig<'mistral'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  if (c.layer_types?.includes('full_attention') && c.sliding_window !== null) {
    throw invalid(
      where,
      `layer_types: model_type '${family}' has the sliding window on every layer, got a mixture`,
    );
  }
  return { ...rmsDecoder(family, c, raw, where), slidingWindows: everyLayer(c, c.sliding_window) };
}

/** Of the class of transformers, where config.json says nothing of RoPE. */
const MINISTRAL_ROPE: Raw = {
  rope_type: 'yarn',
  rope_theta: 1e6,
  factor: 16,
  original_max_position_embeddings: 16384,
  beta_fast: 32,
  beta_slow: 1,
  mscale: 1,
  mscale_all_dim: 1,
  llama_4_scaling_beta: 0.1,
};

/**
 * Ministral 3: queries at position p are multiplied by 1 + beta log(1 + floor(p / original_max_position_embeddings)), which is 1 up to
 * the length of pretraining: so far, and no further.
 */
export function ministral3(c: FamilyConfig<'ministral3'>, raw: Raw, where: string): NativeModelConfig {
  const { key, given } = givenRope(raw);
  const said = Object.keys(given).length > 0;
  const rope = said ? raw : { ...raw, rope_parameters: MINISTRAL_ROPE };
  const decoder = mistral('ministral3', c, rope, where);
  const { llama_4_scaling_beta: beta, original_max_position_embeddings: original } = said
    ? given
    : MINISTRAL_ROPE;
  if (beta === undefined || beta === null || beta === 0) return decoder;
  if (typeof beta !== 'number')
    throw invalid(where, `${key}.llama_4_scaling_beta: expected a number, got ${show(beta)}`);
  if (typeof original !== 'number')
    throw invalid(where, `${key}.original_max_position_embeddings is missing, llama_4_scaling_beta needs it`);
  return { ...decoder, maxPositions: Math.min(decoder.maxPositions, original) };
}
