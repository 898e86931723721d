// OpenAI's gpt-oss: sinks of attention, and experts with biases and a clamped SwiGLU.
import type { NativeModelConfig } from '../native/bridge';
import { invalid, type Raw, rmsDecoder, typedWindows } from './hf_decoder';
import { mixtralExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

/** What GptOssConfig of transformers takes where config.json has no RoPE parameters. */
const USUAL_ROPE = {
  rope_type: 'yarn',
  factor: 32,
  beta_fast: 32,
  beta_slow: 1,
  truncate: false,
  original_max_position_embeddings: 4096,
} as const;

/** native/kernels/ops.h has these, as all published models do. */
const SWIGLU = { swiglu_alpha: 1.702, swiglu_limit: 7 } as const;

/**
 * The model card (arXiv 2508.10925, section 2), as GptOssForCausalLM of transformers. Its softmax over the chosen experts' logits is
 * that over all of them, divided by the sum of the chosen ones.
 */
export function gptOss(c: FamilyConfig<'gpt_oss'>, raw: Raw, where: string): NativeModelConfig {
  for (const key of ['swiglu_alpha', 'swiglu_limit'] as const) {
    if (c[key] !== SWIGLU[key])
      throw invalid(where, `${key} ${c[key]} is not supported; supported: ${SWIGLU[key]}`);
  }
  const turns = isThere(raw['rope_scaling']) || isThere(raw['rope_parameters']);
  const types =
    c.layer_types ??
    Array.from({ length: c.num_hidden_layers }, (_, i) =>
      i % 2 === 0 ? 'sliding_attention' : 'full_attention',
    );
  const experts = mixtralExperts(c);
  return {
    ...rmsDecoder('gpt_oss', c, turns ? raw : { ...raw, rope_parameters: USUAL_ROPE }, where, {
      defaultTheta: 150_000,
    }),
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    attentionSinks: true,
    slidingWindows: typedWindows(types, c.num_hidden_layers, c.sliding_window, where),
    activation: 'clamped_swiglu',
    moe: { ...experts.moe, biases: true },
    moeLayers: experts.moeLayers,
  };
}

const isThere = (value: unknown): boolean => value !== undefined && value !== null;
