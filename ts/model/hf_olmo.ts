// What config.json says of OLMo 2 and OLMo 3: norms behind attention and MLP alone, and over all heads of q and of k, as OLMoE has them, too.
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
import { SOFTMAX_EXPERTS } from './hf_experts';
import type { FamilyConfig } from './hf_schema';
import type { RopeInput } from './rope';

/** Of OLMo 3 where config.json says nothing of it, and of layers with a window where it has no parameters of theirs. */
const THETA = 500_000;

export function olmo2(c: FamilyConfig<'olmo2'>, raw: Raw, where: string): NativeModelConfig {
  return olmo('olmo2', c, raw, where);
}

export function olmo3(c: FamilyConfig<'olmo3'>, raw: Raw, where: string): NativeModelConfig {
  const types =
    c.layer_types ??
    Array.from({ length: c.num_hidden_layers }, (_, i) =>
      (i + 1) % 4 === 0 ? 'full_attention' : 'sliding_attention',
    );
  const turns = ropeOfTypes(raw, where);
  const scaling = raw.rope_scaling;
  if (isObject(scaling) && scaling.type !== undefined && scaling.rope_type === undefined)
    throw invalid(
      where,
      `rope_scaling.type ${show(scaling.type)}: transformers 5 reads rope_scaling.rope_type alone for this model_type; name it so`,
    );
  const theta = raw.rope_theta ?? THETA;
  if (theta !== THETA && (turns.sliding.rope_theta ?? null) === null)
    throw invalid(
      where,
      `rope_theta ${show(theta)}: transformers 5 turns layers with a window by ${THETA} then, releases before it by ${show(theta)}; give each its own in rope_parameters.full_attention and rope_parameters.sliding_attention`,
    );
  const decoder = olmo('olmo3', c, { rope_parameters: turns.full }, where, { defaultTheta: THETA });
  const slidingWindows = typedWindows(types, c.num_hidden_layers, c.sliding_window, where);
  return withTurningWindows({ ...decoder, slidingWindows }, c, turns.sliding, THETA, where);
}

/** Norms before attention and MLP; a softmax over all experts, of which the chosen ones are the weights. */
export function olmoe(c: FamilyConfig<'olmoe'>, raw: Raw, where: string): NativeModelConfig {
  return {
    ...rmsDecoder('olmoe', c, raw, where),
    wholeQkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    moe: {
      ...SOFTMAX_EXPERTS,
      numExperts: c.num_experts,
      topK: c.num_experts_per_tok,
      intermediateSize: c.intermediate_size,
      normalizeTopK: c.norm_topk_prob,
    },
    moeLayers: new Array(c.num_hidden_layers).fill(true),
  };
}

/** What all of them have but OLMoE. */
export function olmo(
  family: 'olmo2' | 'olmo3' | 'olmo_hybrid',
  c: FamilyConfig<'olmo2'>,
  raw: Raw,
  where: string,
  turns: Partial<RopeInput> = {},
): NativeModelConfig {
  return {
    ...rmsDecoder(family, c, raw, where, turns),
    inputNorms: false,
    postNorms: true,
    wholeQkNorm: true,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
  };
}
