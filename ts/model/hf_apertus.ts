// What config.json says of Apertus: Llama with norms of queries and keys, and MLPs without a gate whose activation is trained.
import type { NativeModelConfig } from '../native/bridge';
import { type Raw, rmsDecoder } from './hf_decoder';
import type { FamilyConfig } from './hf_schema';
import { givenRope } from './rope';

const THETA = 12_000_000;
/** Where config.json has no RoPE but a theta, which transformers does not read then. */
const ROPE = {
  rope_type: 'llama3',
  rope_theta: THETA,
  factor: 8,
  original_max_position_embeddings: 8192,
  low_freq_factor: 1,
  high_freq_factor: 4,
};

export function apertus(c: FamilyConfig<'apertus'>, raw: Raw, where: string): NativeModelConfig {
  const none = (raw['rope_parameters'] ?? null) === null && Object.keys(givenRope(raw).given).length === 0;
  const xielu = c.hidden_act === 'xielu';
  const decoder = rmsDecoder(
    'apertus',
    xielu ? { ...c, hidden_act: 'silu' } : c,
    none ? { ...raw, rope_parameters: ROPE } : raw,
    where,
    { defaultTheta: THETA },
  );
  return {
    ...decoder,
    qkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    gatedMlp: false,
    ...(xielu ? { activation: 'xielu' } : {}),
  };
}
