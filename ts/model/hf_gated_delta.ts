// Qwen3-Next and the language models of Qwen3.5: layers of the gated delta rule, and of attention with gates.
import { show } from '../base/text';
import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';
import { checkConvWidth } from './conv_width';
import { activation, invalid, type Raw, rmsDecoder, typedLayers } from './hf_decoder';
import { qwenExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

type GatedDelta =
  | FamilyConfig<'qwen3_next'>
  | FamilyConfig<'qwen3_5_text'>
  | FamilyConfig<'qwen3_5_moe_text'>;

/** Key heads of more numbers have no kernel (native/kernels/cpu/gated_delta_kernels.h). */
export const MOST_KEY_DIM = 256;

/** As Qwen3NextForCausalLM of transformers: rows of the input projection lie together by key head. */
export function qwen3Next(c: FamilyConfig<'qwen3_next'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...gatedDelta('qwen3_next', c, raw, where),
    ...qwenExperts(c, c.shared_expert_intermediate_size),
  };
}

/**
 * As Qwen3_5MoeForCausalLM of transformers, or the language model beside a tower: experts on all layers.
 */
export function gatedDeltaMoe(
  family: 'qwen3_5_moe_text' | 'qwen3_5_moe',
  c: FamilyConfig<'qwen3_5_moe_text'>,
  raw: Raw,
  where: string,
): NativeModelConfig {
  const everywhere = { decoder_sparse_step: 1, norm_topk_prob: true, mlp_only_layers: [] };
  return {
    ...gatedDelta(family, c, raw, where),
    ...qwenExperts({ ...c, ...everywhere }, c.shared_expert_intermediate_size),
  };
}

/** As Qwen3_5ForCausalLM of transformers. Its sections of RoPE (mrope_section) differ for images alone: text has one position. */
export function gatedDelta(
  family: 'qwen3_next' | 'qwen3_5_text' | 'qwen3_5' | 'qwen3_5_moe_text' | 'qwen3_5_moe',
  c: GatedDelta,
  raw: Raw,
  where: string,
): NativeModelConfig {
  const heads = deltaHeads(c, where);
  const decoder = rmsDecoder(family, c, raw, where, { partialFactor: 0.25 });
  return {
    ...decoder,
    normUnitOffset: true,
    qkNorm: true,
    attentionGate: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    linear: {
      ...heads,
      matrices: family === 'qwen3_next' ? 'by_key_head' : 'joined',
      betaScale: 1,
      normEps: decoder.normEps,
    },
    linearLayers: linearLayersOf(c, where),
  };
}

type DeltaHeads = Pick<
  GatedDelta,
  | 'linear_conv_kernel_dim'
  | 'linear_num_key_heads'
  | 'linear_num_value_heads'
  | 'linear_key_head_dim'
  | 'linear_value_head_dim'
  | 'hidden_act'
>;

/** The heads of layers of the gated delta rule, whose convolution ends in hidden_act, too. */
export function deltaHeads(
  c: DeltaHeads,
  where: string,
): Omit<NativeLinearConfig, 'matrices' | 'betaScale' | 'normEps'> {
  checkConvWidth('linear_conv_kernel_dim', c.linear_conv_kernel_dim, where);
  if (c.linear_key_head_dim > MOST_KEY_DIM)
    throw invalid(where, `linear_key_head_dim ${c.linear_key_head_dim}: expected at most ${MOST_KEY_DIM}`);
  if (c.linear_num_value_heads % c.linear_num_key_heads !== 0)
    throw invalid(
      where,
      `linear_num_value_heads ${c.linear_num_value_heads} does not divide by linear_num_key_heads ${c.linear_num_key_heads}`,
    );
  if (activation(c.hidden_act, 'hidden_act', where) !== 'silu')
    throw invalid(
      where,
      `hidden_act ${show(c.hidden_act)} is not supported for this model_type; supported: silu`,
    );
  return {
    rule: 'gated_delta',
    keyHeads: c.linear_num_key_heads,
    valueHeads: c.linear_num_value_heads,
    keyDim: c.linear_key_head_dim,
    valueDim: c.linear_value_head_dim,
    convBias: false,
    convWidth: c.linear_conv_kernel_dim,
    leastStep: 0,
  };
}

const LINEAR = new Map([
  ['linear_attention', true],
  ['full_attention', false],
]);

/** Which layers have it. */
export function linearLayersOf(
  c: Pick<GatedDelta, 'layer_types' | 'num_hidden_layers' | 'full_attention_interval'>,
  where: string,
): boolean[] {
  const types =
    c.layer_types ??
    Array.from({ length: c.num_hidden_layers }, (_, i) =>
      (i + 1) % c.full_attention_interval === 0 ? 'full_attention' : 'linear_attention',
    );
  return typedLayers(types, c.num_hidden_layers, LINEAR, where);
}
