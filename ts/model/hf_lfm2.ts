// What config.json says of LFM2: layers of a short convolution or of attention with norms of queries and keys.
import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';
import { checkConvWidth } from './conv_width';
import { invalid, type Raw, rmsDecoder, typedLayers } from './hf_decoder';
import { SOFTMAX_EXPERTS } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

type Lfm2 = FamilyConfig<'lfm2'>;
type Lfm2Moe = FamilyConfig<'lfm2_moe'>;

/** Which layers have one. */
const CONVOLUTIONS = new Map([
  ['conv', true],
  ['full_attention', false],
]);
/** What is added to the sum of the chosen scores before they are divided by it. */
const NORMALIZER_EPS = 1e-6;

/** As Lfm2ForCausalLM of transformers. */
export function lfm2(c: Lfm2, raw: Raw, where: string): NativeModelConfig {
  const types =
    c.layer_types ??
    Array.from({ length: c.num_hidden_layers }, (_, i) =>
      (c.full_attn_idxs ?? [i]).includes(i) ? 'full_attention' : 'conv',
    );
  return hybrid('lfm2', { ...c, intermediate_size: innerSize(c) }, types, raw, where);
}

/** As Lfm2MoeForCausalLM of transformers. */
export function lfm2Moe(c: Lfm2Moe, raw: Raw, where: string): NativeModelConfig {
  const moeLayers = Array.from({ length: c.num_hidden_layers }, (_, i) => i >= c.num_dense_layers);
  if (c.layer_types === null) throw invalid(where, 'layer_types: expected conv or full_attention per layer');
  return {
    ...hybrid('lfm2_moe', c, c.layer_types, raw, where),
    ...experts(c, moeLayers),
  };
}

function experts(c: Lfm2Moe, moeLayers: boolean[]): Pick<NativeModelConfig, 'moe' | 'moeLayers'> {
  if (!moeLayers.includes(true)) return { moe: null, moeLayers: [] };
  return {
    moe: {
      ...SOFTMAX_EXPERTS,
      sharedGate: false,
      score: 'sigmoid',
      correctionBias: c.use_expert_bias,
      numExperts: c.num_experts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.moe_intermediate_size,
      normalizeTopK: c.norm_topk_prob,
      normalizerEps: NORMALIZER_EPS,
      routedScale: c.routed_scaling_factor,
    },
    moeLayers,
  };
}

function hybrid(
  family: 'lfm2' | 'lfm2_moe',
  c: Lfm2 | Lfm2Moe,
  types: readonly string[],
  raw: Raw,
  where: string,
): NativeModelConfig {
  // That the other families call otherwise.
  const decoder = {
    ...c,
    hidden_act: 'silu',
    rms_norm_eps: c.norm_eps,
    tie_word_embeddings: c.tie_embedding ?? c.tie_word_embeddings,
  };
  const linearLayers = typedLayers(types, c.num_hidden_layers, CONVOLUTIONS, where);
  const linear = linearLayers.includes(true);
  return {
    ...rmsDecoder(family, decoder, raw, where, { defaultTheta: 1e6 }),
    qkNorm: true,
    linear: linear ? convolution(c, where) : null,
    linearLayers: linear ? linearLayers : [],
  };
}

/** Each channel is a head of one number. */
function convolution(c: Lfm2 | Lfm2Moe, where: string): NativeLinearConfig {
  checkConvWidth('conv_L_cache', c.conv_L_cache, where);
  return {
    rule: 'short_conv',
    keyHeads: c.hidden_size,
    valueHeads: c.hidden_size,
    keyDim: 0,
    valueDim: 1,
    matrices: 'joined',
    convBias: c.conv_bias,
    convWidth: c.conv_L_cache,
    leastStep: 0,
    betaScale: 1,
    normEps: c.norm_eps,
  };
}

/** Two thirds of the size, rounded up to whole blocks, unless block_auto_adjust_ff_dim says no. */
function innerSize(c: Lfm2): number {
  const size = c.block_ff_dim ?? c.intermediate_size;
  if (!c.block_auto_adjust_ff_dim) return size;
  const scaled = Math.trunc(c.block_ffn_dim_multiplier * Math.trunc((2 * size) / 3));
  return c.block_multiple_of * Math.ceil(scaled / c.block_multiple_of);
}
