// What config.json says of Mellum 2: Qwen 3's attention with windows on some layers, which turn by a theta of their own, and its experts.
import { show } from '../base/text';
import type { NativeModelConfig } from '../native/bridge';
import {
  invalid,
  isObject,
  type Raw,
  rmsDecoder,
  ropeOfTypes,
  typedWindows,
  withTurningWindows,
} from './hf_decoder';
import { SOFTMAX_EXPERTS, typedExperts } from './hf_experts';
import type { FamilyConfig } from './hf_schema';

/** Where config.json says nothing of rotation. */
const FULL_THETA = 500_000;
const SLIDING_THETA = 10_000;

/** As MellumForCausalLM of transformers. */
export function mellum(c: FamilyConfig<'mellum'>, raw: Raw, where: string): NativeModelConfig {
  const types = c.layer_types ?? new Array<string>(c.num_hidden_layers).fill('full_attention');
  const slidingWindows = typedWindows(types, c.num_hidden_layers, c.sliding_window, where);
  // Keys beside rope_parameters are not read.
  const given = raw['rope_parameters'] ?? null;
  if (given !== null) checkThetas(given, types, where);
  const turns = ropeOfTypes({ rope_parameters: given }, where);
  const decoder = rmsDecoder('mellum', c, { rope_parameters: turns.full }, where, {
    defaultTheta: FULL_THETA,
  });
  const moeLayers = typedExperts(c, 0, where);
  const sparse = moeLayers.includes(true);
  const typed = withTurningWindows({ ...decoder, slidingWindows }, c, turns.sliding, SLIDING_THETA, where);
  return {
    ...typed,
    qkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    moe: sparse
      ? {
          ...SOFTMAX_EXPERTS,
          numExperts: c.num_experts,
          topK: c.num_experts_per_tok,
          intermediateSize: c.moe_intermediate_size,
          normalizeTopK: c.norm_topk_prob,
        }
      : null,
    moeLayers: sparse ? moeLayers : [],
  };
}

/** transformers has no theta for a type of layers whose parameters lack it. */
function checkThetas(given: unknown, types: readonly string[], where: string): void {
  for (const type of new Set(types)) {
    const own = isObject(given) ? given[type] : undefined;
    if (typeof (isObject(own) ? own['rope_theta'] : undefined) !== 'number')
      throw invalid(
        where,
        `rope_parameters.${type} ${show(own)}: expected an object with rope_theta for these layers`,
      );
  }
}
