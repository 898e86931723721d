// What config.json says of Granite 4: layers of Mamba 2 or of attention, with the factors of Granite 3.
import { show } from '../base/text';
import type { NativeLinearConfig, NativeModelConfig } from '../native/bridge';
import { checkConvWidth } from './conv_width';
import { invalid, isObject, type Raw, rmsDecoder, typedLayers } from './hf_decoder';
import { SOFTMAX_EXPERTS } from './hf_experts';
import { MOST_KEY_DIM } from './hf_gated_delta';
import { graniteFactors } from './hf_granite';
import type { FamilyConfig } from './hf_schema';

type Hybrid = FamilyConfig<'granitemoehybrid'>;

const TYPES = new Map([
  ['linear_attention', true],
  ['mamba', true],
  ['full_attention', false],
  ['attention', false],
]);

/** As GraniteMoeHybridForCausalLM of transformers. */
export function graniteHybrid(c: Hybrid, raw: Raw, where: string): NativeModelConfig {
  const turns = c.position_embedding_type === 'rope';
  const { ropeInvFreq, ...decoder } = rmsDecoder('granitemoehybrid', c, turns ? raw : {}, where);
  const linearLayers = layersOf(c, where);
  const linear = linearLayers.includes(true);
  const experts = c.num_local_experts > 0;
  if (experts && c.num_experts_per_tok === 0)
    throw invalid(where, `num_experts_per_tok 0 of ${c.num_local_experts} experts: expected at least 1`);
  return {
    ...decoder,
    ...graniteFactors(c),
    positions: turns ? 'rope' : 'none',
    ropeInvFreq: turns ? ropeInvFreq : new Float64Array(0),
    // Of layers without experts; of experts it is intermediate_size.
    intermediateSize: c.shared_intermediate_size,
    moe: experts
      ? {
          ...SOFTMAX_EXPERTS,
          numExperts: c.num_local_experts,
          topK: c.num_experts_per_tok,
          intermediateSize: c.intermediate_size,
          normalizeTopK: true,
          sharedIntermediateSize: c.shared_intermediate_size,
          sharedGate: false,
        }
      : null,
    moeLayers: experts ? new Array(c.num_hidden_layers).fill(true) : [],
    linear: linear ? mamba(c, raw, where) : null,
    linearLayers: linear ? linearLayers : [],
  };
}

function layersOf(c: Hybrid, where: string): boolean[] {
  const types = c.layer_types ?? new Array<string>(c.num_hidden_layers).fill('linear_attention');
  return typedLayers(types, c.num_hidden_layers, TYPES, where);
}

function mamba(c: Hybrid, raw: Raw, where: string): NativeLinearConfig {
  const { mamba_n_heads: heads, mamba_n_groups: groups, mamba_d_state: state } = c;
  const width = c.mamba_expand * c.hidden_size;
  const dim = c.mamba_d_head === 'auto' ? width / heads : c.mamba_d_head;
  if (dim * heads !== width || !Number.isInteger(dim))
    throw invalid(
      where,
      `mamba_n_heads ${heads} of mamba_d_head ${c.mamba_d_head}: expected mamba_expand * hidden_size = ${width} numbers in all`,
    );
  if (heads % groups !== 0)
    throw invalid(where, `mamba_n_heads ${heads} does not divide by mamba_n_groups ${groups}`);
  if (state > MOST_KEY_DIM) throw invalid(where, `mamba_d_state ${state}: expected at most ${MOST_KEY_DIM}`);
  checkConvWidth('mamba_d_conv', c.mamba_d_conv, where);
  // That of the convolution, too.
  if (c.hidden_act !== 'silu')
    throw invalid(
      where,
      `hidden_act ${show(c.hidden_act)} is not supported beside layers of Mamba 2; supported: silu`,
    );
  if (c.mamba_proj_bias) throw invalid(where, 'mamba_proj_bias true is not supported; supported: false');
  return {
    rule: 'mamba2',
    keyHeads: groups,
    valueHeads: heads,
    keyDim: state,
    valueDim: dim,
    matrices: 'joined',
    convBias: c.mamba_conv_bias,
    convWidth: c.mamba_d_conv,
    leastStep: leastStep(raw['time_step_limit'] ?? [0, Number.POSITIVE_INFINITY], where),
    betaScale: 1,
    normEps: c.rms_norm_eps,
  };
}

/** Of time_step_limit, whose second number is an infinity, as Python or transformers 5 writes it. */
function leastStep(limit: unknown, where: string): number {
  const [least, most] = Array.isArray(limit) && limit.length === 2 ? (limit as unknown[]) : [];
  const unbounded = most === Number.POSITIVE_INFINITY || (isObject(most) && most['__float__'] === 'Infinity');
  if (typeof least !== 'number' || !(least >= 0) || !Number.isFinite(least) || !unbounded)
    throw invalid(
      where,
      `time_step_limit ${show(limit)} is not supported; supported: a number of 0 or more, and Infinity`,
    );
  return least;
}
