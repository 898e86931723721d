// Decoders with multi-head latent attention.
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import { invalid, type Raw, rmsDecoder } from './hf_decoder';
import { deepseekExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';
import { resolveRope } from './rope';

/** What DeepSeek's own code can be told and transformers' cannot: the one choice of all DeepSeek-V3 models. */
const FIXED: Readonly<Record<string, unknown>> = {
  moe_layer_freq: 1,
  scoring_func: 'sigmoid',
  topk_method: 'noaux_tc',
};

/** transformers gives the norms of the latents the default of its class, whatever rms_norm_eps is; so does DeepSeek's own code. */
const LATENT_NORM_EPS = 1e-6;

/** DeepSeek-V3 (arXiv 2412.19437, section 2.1), as DeepseekV3ForCausalLM of transformers. */
export function deepseekV3(
  family: 'deepseek_v3' | 'kimi_k2',
  c: FamilyConfig<'deepseek_v3'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  for (const [key, value] of Object.entries(FIXED)) {
    const given = raw[key];
    if (given !== undefined && given !== null && given !== value)
      throw invalid(where, `${key} ${show(given)} is not supported; supported: ${show(value)}`);
  }
  const heads = c.num_attention_heads;
  if ((c.num_key_value_heads ?? heads) !== heads)
    throw invalid(
      where,
      `num_key_value_heads ${c.num_key_value_heads}: latent attention makes a key for each of the ${heads} heads of num_attention_heads, expected as many`,
    );
  const { qk_nope_head_dim: stillDim, qk_rope_head_dim: rotaryDim, v_head_dim: valueDim } = c;
  if (rotaryDim % 2 !== 0)
    throw invalid(where, `qk_rope_head_dim ${rotaryDim} is odd, RoPE needs an even one`);
  const turns = { headDim: rotaryDim, types: { default: 'default', yarn: 'yarn' } } as const;
  const decoder = rmsDecoder(family, c, raw, where, turns);
  const { scoreFactor } = resolveRope({ raw, maxPositions: c.max_position_embeddings, where, ...turns });
  return {
    ...decoder,
    numKvHeads: heads,
    headDim: Math.max(stillDim + rotaryDim, valueDim),
    attentionScale: (stillDim + rotaryDim) ** -0.5 * scoreFactor,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    latent: {
      queryRank: c.q_lora_rank ?? 0,
      keyRank: c.kv_lora_rank,
      stillDim,
      rotaryDim,
      valueDim,
      interleaved: c.rope_interleave,
      normEps: LATENT_NORM_EPS,
    },
    ...deepseekExperts(c, where),
  };
}
