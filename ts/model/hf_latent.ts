// Decoders with multi-head latent attention.
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import { invalid, type Raw, rmsDecoder } from './hf_decoder';
import { behindDense, deepseekExperts, GREEDY_ROUTER, typedExperts } from './hf_experts';
import type { DecoderConfig, Family, FamilyConfig } from './hf_schema';
import { resolveRope } from './rope';

/** Keys that may have one value alone, and why, where others are known. */
type Fixed = Readonly<Record<string, readonly [value: unknown, why?: string]>>;

/** What DeepSeek's own code can be told and transformers' cannot: the one choice of all DeepSeek-V3 models. */
const FIXED: Fixed = {
  moe_layer_freq: [1],
  scoring_func: ['sigmoid'],
  topk_method: ['noaux_tc'],
};

/** And of all DeepSeek-V2 models, with what its two implementations understand in two ways. */
const FIXED_V2: Fixed = {
  moe_layer_freq: [1],
  scoring_func: ['softmax'],
  norm_topk_prob: [
    false,
    "transformers leaves the weights as they are, DeepSeek's own code divides them by their sum and leaves out routed_scaling_factor",
  ],
  mlp_bias: [false, "DeepSeek's own code has no such biases"],
};

/** transformers gives the norms of the latents the default of its class, whatever rms_norm_eps is; so does DeepSeek's own code. */
const LATENT_NORM_EPS = 1e-6;

type Latent = DecoderConfig &
  Pick<
    FamilyConfig<'deepseek_v3'>,
    | 'attention_bias'
    | 'q_lora_rank'
    | 'kv_lora_rank'
    | 'qk_nope_head_dim'
    | 'qk_rope_head_dim'
    | 'v_head_dim'
    | 'rope_interleave'
  >;

/** DeepSeek-V3 (arXiv 2412.19437, section 2.1), as DeepseekV3ForCausalLM of transformers. */
export function deepseekV3(
  family: 'deepseek_v3' | 'kimi_k2',
  c: FamilyConfig<'deepseek_v3'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  return {
    ...latentDecoder(family, c, raw, FIXED, where),
    ...deepseekExperts(c, behindDense(c), where),
  };
}

/** DeepSeek-V2 (arXiv 2405.04434, section 2), as DeepseekV2ForCausalLM of transformers. */
export function deepseekV2(c: FamilyConfig<'deepseek_v2'>, raw: Raw, where: string): NativeModelConfig {
  const decoder = latentDecoder('deepseek_v2', { ...c, rope_interleave: true }, raw, FIXED_V2, where);
  return {
    ...decoder,
    ...deepseekExperts({ ...c, ...groupsOf(c, where) }, behindDense(c), where, GREEDY_ROUTER),
  };
}

function groupsOf(c: FamilyConfig<'deepseek_v2'>, where: string): { n_group: number; topk_group: number } {
  const { topk_method: method, n_group, topk_group } = c;
  if (method === 'greedy') return { n_group: 1, topk_group: 1 };
  if (method !== 'group_limited_greedy')
    throw invalid(
      where,
      `topk_method ${show(method)} is not supported; supported: "greedy", "group_limited_greedy"`,
    );
  if (n_group === null || topk_group === null)
    throw invalid(
      where,
      `${n_group === null ? 'n_group' : 'topk_group'} is missing, topk_method group_limited_greedy needs it`,
    );
  return { n_group, topk_group };
}

/** GLM-4.7-Flash, as Glm4MoeLiteForCausalLM of transformers: both parts are DeepSeek-V3's. */
export function glm4MoeLite(c: FamilyConfig<'glm4_moe_lite'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...latentDecoder('glm4_moe_lite', c, raw, FIXED, where),
    ...deepseekExperts(c, sparseLayers(c, where), where),
  };
}

/** Youtu-LLM, as YoutuForCausalLM of transformers: DeepSeek-V3's attention in a dense decoder. */
export function youtu(c: FamilyConfig<'youtu'>, raw: Raw, where: string): NativeModelConfig {
  return latentDecoder('youtu', c, raw, {}, where);
}

function sparseLayers(c: FamilyConfig<'glm4_moe_lite'>, where: string): boolean[] {
  const { mlp_layer_types: types, first_k_dense_replace: dense } = c;
  const layers = typedExperts(c, 1, where);
  // transformers looks at the types alone, and others at the number alone.
  if (dense !== null && layers.some((sparse, layer) => sparse !== layer >= dense))
    throw invalid(
      where,
      `first_k_dense_replace ${dense} and mlp_layer_types ${types === null ? '(missing: the first layer is dense)' : show(types)}: expected the same layers`,
    );
  return layers;
}

/** All but the experts. */
function latentDecoder(family: Family, c: Latent, raw: Raw, fixed: Fixed, where: string): NativeModelConfig {
  for (const [key, [value, why]] of Object.entries(fixed)) {
    const given = raw[key];
    if (given !== undefined && given !== null && given !== value)
      throw invalid(
        where,
        `${key} ${show(given)} is not supported${why === undefined ? '' : ` (${why})`}; supported: ${show(value)}`,
      );
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
  };
}
