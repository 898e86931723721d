// What config.json says of Gemma 4's language model: heads that differ between layers with a window and the others.
import { show } from '../base/text';
import type { NativeHeadShape, NativeModelConfig } from '../native/bridge';
import {
  activation,
  invalid,
  type Raw,
  rmsDecoder,
  ropeOfTypes,
  typedWindows,
  withTurningWindows,
} from './hf_decoder';
import { SOFTMAX_EXPERTS } from './hf_experts';
import { LOCAL_THETA } from './hf_gemma';
import type { FamilyConfig } from './hf_schema';

type Config = FamilyConfig<'gemma4_text'>;

/** Layers without a window turn a quarter of their heads. */
const FULL_TURNS = { rope_type: 'proportional', partial_rotary_factor: 0.25, rope_theta: 1e6 } as const;
const TYPES = { default: 'default', proportional: 'proportional' } as const;

/** As Gemma4ForCausalLM of transformers. */
export function gemma4(c: Config, raw: Raw, where: string): NativeModelConfig {
  if (c.use_bidirectional_attention !== 'vision')
    throw invalid(
      where,
      `use_bidirectional_attention ${show(c.use_bidirectional_attention)} is not supported; supported: null, or "vision", which text does not have`,
    );
  const types = layerTypes(c, where);
  const slidingWindows = typedWindows(types, c.num_hidden_layers, c.sliding_window, where);
  const global = globalHeads(c, types, where);
  const given = raw['rope_parameters'] ?? null;
  const turns = ropeOfTypes({ rope_parameters: given ?? { full_attention: FULL_TURNS } }, where);
  const decoder = rmsDecoder(
    'gemma4_text',
    { ...c, head_dim: global.headDim, num_key_value_heads: global.numKvHeads },
    { rope_parameters: turns.full },
    where,
    { types: TYPES, partialFactor: 1 },
  );
  const typed = withTurningWindows(
    { ...decoder, slidingWindows },
    c,
    turns.sliding,
    LOCAL_THETA,
    where,
    c.head_dim,
  );
  return {
    ...typed,
    ...expertsOf(c, where),
    activation: activation(c.hidden_activation, 'hidden_activation', where),
    postNorms: true,
    qkNorm: true,
    valueNorm: true,
    layerScale: true,
    attentionScale: 1,
    embeddingScale: Math.sqrt(c.hidden_size),
    finalSoftcap: c.final_logit_softcapping ?? 0,
    qkvBias: c.attention_bias,
    outputBias: c.attention_bias,
    secondHeads: { numKvHeads: c.num_key_value_heads, headDim: c.head_dim },
    valuesFromKeys: c.attention_k_eq_v,
    ...sharing(c, types, where),
    perLayerSize: perLayerSize(c, where),
  };
}

/** Every sixth sees all, and so does the last one, whatever is given. */
function layerTypes(c: Config, where: string): string[] {
  const layers = c.num_hidden_layers;
  const types =
    c.layer_types ??
    Array.from({ length: layers }, (_, i) => ((i + 1) % 6 === 0 ? 'full_attention' : 'sliding_attention'));
  if (types.length !== layers)
    throw invalid(where, `layer_types has ${types.length} entries but the model has ${layers} layers`);
  return types.map((type, i) => (i === layers - 1 ? 'full_attention' : type));
}

/** Heads of the layers that see all, as published or as transformers saves them. */
function globalHeads(c: Config, types: readonly string[], where: string): NativeHeadShape {
  const { per_layer_config: saved } = c;
  if (saved === null)
    return {
      headDim: c.global_head_dim,
      numKvHeads: (c.attention_k_eq_v ? c.num_global_key_value_heads : null) ?? c.num_key_value_heads,
    };
  const shapes = types.map((type, i) => {
    const { head_dim: headDim = c.head_dim, num_key_value_heads: numKvHeads = c.num_key_value_heads } =
      saved.get(i) ?? {};
    return { full: type === 'full_attention', headDim, numKvHeads };
  });
  const global = shapes.at(-1) as (typeof shapes)[number];
  for (const [i, { full, headDim, numKvHeads }] of shapes.entries()) {
    const expected = full ? global : { headDim: c.head_dim, numKvHeads: c.num_key_value_heads };
    if (headDim !== expected.headDim || numKvHeads !== expected.numKvHeads)
      throw invalid(
        where,
        `per_layer_config.${i}: layers of one type have heads of one shape: expected head_dim ${expected.headDim} and num_key_value_heads ${expected.numKvHeads}, got ${headDim} and ${numKvHeads}`,
      );
  }
  const other = [...saved.keys()].find((layer) => layer >= types.length);
  if (other !== undefined)
    throw invalid(where, `per_layer_config.${other}: the model has ${types.length} layers`);
  return { headDim: global.headDim, numKvHeads: global.numKvHeads };
}

/** The last layers, which take keys and values from the last one of their type before them. */
function sharing(
  c: Config,
  types: readonly string[],
  where: string,
): Pick<NativeModelConfig, 'sharedKvLayers' | 'sharedMlpSize'> {
  const shared = c.num_kv_shared_layers;
  const giving = types.slice(0, Math.max(0, types.length - shared));
  const missing = types.slice(giving.length).find((type) => !giving.includes(type));
  if (missing !== undefined)
    throw invalid(
      where,
      `num_kv_shared_layers ${shared}: no layer of ${missing} is before the last ${shared}, to give them keys and values`,
    );
  const wide = shared > 0 && c.use_double_wide_mlp;
  return { sharedKvLayers: shared, sharedMlpSize: wide ? 2 * c.intermediate_size : 0 };
}

function perLayerSize(c: Config, where: string): number {
  const size = c.hidden_size_per_layer_input;
  if (size > 0 && c.vocab_size_per_layer_input !== c.vocab_size)
    throw invalid(
      where,
      `vocab_size_per_layer_input ${c.vocab_size_per_layer_input}: expected vocab_size, ${c.vocab_size}`,
    );
  return size;
}

function expertsOf(c: Config, where: string): Pick<NativeModelConfig, 'moe' | 'moeLayers'> {
  if (!c.enable_moe_block) return { moe: null, moeLayers: [] };
  const needed = (key: 'num_experts' | 'top_k_experts' | 'moe_intermediate_size'): number => {
    const value = c[key];
    if (value === null) throw invalid(where, `${key} is missing, enable_moe_block needs it`);
    return value;
  };
  return {
    moe: {
      ...SOFTMAX_EXPERTS,
      besideMlp: true,
      numExperts: needed('num_experts'),
      topK: needed('top_k_experts'),
      intermediateSize: needed('moe_intermediate_size'),
      normalizeTopK: true,
    },
    moeLayers: new Array(c.num_hidden_layers).fill(true),
  };
}
