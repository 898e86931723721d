// What config.json says of the parts that the Llama-like families share.
import { show } from '../base/text';
import { TroupeError } from '../errors';
import type { NativeModelConfig, NativeVisionConfig } from '../native/bridge';
import type { DecoderConfig, Family, FamilyConfig } from './hf_schema';
import { type RopeInput, resolveRope } from './rope';

/** Without parameters, of one number. */
type PlainActivation = NativeVisionConfig['activation'];

const ACTIVATIONS: Readonly<Record<string, PlainActivation>> = {
  silu: 'silu',
  swish: 'silu',
  gelu: 'gelu',
  gelu_new: 'gelu_tanh',
  gelu_fast: 'gelu_tanh',
  gelu_pytorch_tanh: 'gelu_tanh',
  quick_gelu: 'quick_gelu',
  relu: 'relu',
  relu2: 'relu2',
};

export type Raw = Record<string, unknown>;

export const invalid = (where: string, message: string): TroupeError =>
  new TroupeError('INVALID_MODEL', `[model] ${where}: ${message}`);

/** All layers turn alike. */
export const ONE_ROPE: Pick<
  NativeModelConfig,
  'secondRopeLayers' | 'secondRopeInvFreq' | 'secondRopeAttentionFactor'
> = { secondRopeLayers: [], secondRopeInvFreq: new Float64Array(0), secondRopeAttentionFactor: 1 };

/** All layers have heads and MLPs of one shape, with keys and values of their own, and get a row alone. */
export const ONE_SHAPE = {
  valueNorm: false,
  layerScale: false,
  secondHeads: null,
  valuesFromKeys: false,
  sharedKvLayers: 0,
  sharedMlpSize: 0,
  perLayerSize: 0,
} as const satisfies Partial<NativeModelConfig>;

/** What the Llama-like families share: RMSNorm, RoPE, a gated MLP, no bias, full attention. */
export function rmsDecoder(
  family: Family,
  c: DecoderConfig,
  raw: Raw,
  where: string,
  turns: Partial<RopeInput> = {},
): NativeModelConfig {
  const headDim = c.head_dim ?? Math.floor(c.hidden_size / c.num_attention_heads);
  const maxPositions = c.max_position_embeddings;
  const rope = resolveRope({ raw, headDim, maxPositions, where, ...turns });
  return {
    family,
    head: 'lm',
    vocabSize: c.vocab_size,
    hiddenSize: c.hidden_size,
    numLayers: c.num_hidden_layers,
    numHeads: c.num_attention_heads,
    numKvHeads: c.num_key_value_heads ?? c.num_attention_heads,
    headDim,
    intermediateSize: c.intermediate_size,
    maxPositions: rope.maxPositions,
    norm: 'rms',
    normEps: c.rms_norm_eps,
    normUnitOffset: false,
    inputNorms: true,
    postNorms: false,
    qkNorm: false,
    wholeQkNorm: false,
    attentionScale: headDim ** -0.5,
    attentionSoftcap: 0,
    finalSoftcap: 0,
    logitsScaling: 1,
    residualScale: 1,
    attentionGate: false,
    gatesApart: false,
    attentionSinks: false,
    slidingWindows: everyLayer(c, null),
    qkvBias: false,
    outputBias: false,
    mlpBias: false,
    gatedMlp: true,
    activation: activation(c.hidden_act, 'hidden_act', where),
    positions: 'rope',
    ropeInvFreq: rope.invFreq,
    ropeAttentionFactor: rope.attentionFactor,
    ropePairs: false,
    ...ONE_ROPE,
    ...ONE_SHAPE,
    embeddingScale: 1,
    tiedEmbeddings: c.tie_word_embeddings,
    valueBias: false,
    latent: null,
    moe: null,
    moeLayers: [],
    linear: null,
    linearLayers: [],
    bareLayers: [],
    vision: null,
    prediction: null,
  };
}

export function activation(name: string, key: string, where: string): PlainActivation {
  const found = Object.hasOwn(ACTIVATIONS, name) ? ACTIVATIONS[name] : undefined;
  if (found === undefined)
    throw invalid(
      where,
      `${key} ${show(name)} is not supported; supported: ${Object.keys(ACTIVATIONS).join(', ')}`,
    );
  return found;
}

export const everyLayer = (c: { num_hidden_layers: number }, window: number | null): number[] =>
  new Array(c.num_hidden_layers).fill(window ?? 0);

/** What each layer's entry of layer_types means. @throws TroupeError INVALID_MODEL naming the key */
export function typedLayers<T>(
  types: readonly string[],
  layers: number,
  meanings: ReadonlyMap<string, T>,
  where: string,
): T[] {
  if (types.length !== layers)
    throw invalid(where, `layer_types has ${types.length} entries but the model has ${layers} layers`);
  return types.map((type, i) => {
    const meaning = meanings.get(type);
    if (meaning === undefined)
      throw invalid(
        where,
        `layer_types[${i}] ${show(type)} is not supported; supported: ${[...meanings.keys()].join(', ')}`,
      );
    return meaning;
  });
}

export function typedWindows(
  types: string[],
  layers: number,
  window: number | null,
  where: string,
): number[] {
  if (types.length !== layers)
    throw invalid(where, `layer_types has ${types.length} entries but the model has ${layers} layers`);
  return types.map((type, i) => {
    if (type === 'full_attention') return 0;
    if (type !== 'sliding_attention') {
      throw invalid(
        where,
        `layer_types[${i}] ${show(type)} is not supported; supported: full_attention, sliding_attention`,
      );
    }
    if (window === null)
      throw invalid(where, `layer_types[${i}] is sliding_attention but no sliding_window is in use`);
    return window;
  });
}

/** Of Qwen 2 and 3: layers from `max_window_layers` on, or those that `layer_types` says. */
export function qwenWindows(c: FamilyConfig<'qwen2'>, where: string): number[] {
  const window = c.use_sliding_window ? c.sliding_window : null;
  if (c.layer_types !== null) return typedWindows(c.layer_types, c.num_hidden_layers, window, where);
  return Array.from({ length: c.num_hidden_layers }, (_, i) =>
    i >= c.max_window_layers ? (window ?? 0) : 0,
  );
}

export const isObject = (value: unknown): value is Raw =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** RoPE of layers that see all, and of those with a window, in both spellings; a scaling of the hub's is that of the first. */
export function ropeOfTypes(raw: Raw, where: string): { full: Raw; sliding: Raw } {
  const given = raw.rope_parameters ?? {};
  const { full_attention: full = null, sliding_attention: sliding = null, ...others } = given as Raw;
  const fits = [full, sliding].every((one) => one === null || isObject(one));
  if (!isObject(given) || !fits || Object.keys(others).length > 0)
    throw invalid(
      where,
      `rope_parameters: expected those of full_attention and of sliding_attention, got ${show(given)}`,
    );
  const scaling = isObject(raw.rope_scaling) ? raw.rope_scaling : {};
  return {
    full: { rope_theta: raw.rope_theta, ...(full as Raw | null), ...scaling },
    sliding: { rope_theta: raw.rope_local_base_freq, ...(sliding as Raw | null) },
  };
}

/** Layers with a window turn by parameters of their own, `sliding`, and may have heads of another size. */
export function withTurningWindows(
  decoder: NativeModelConfig,
  c: Pick<DecoderConfig, 'max_position_embeddings'>,
  sliding: Raw,
  defaultTheta: number,
  where: string,
  headDim = decoder.headDim,
): NativeModelConfig {
  const { slidingWindows } = decoder;
  const maxPositions = c.max_position_embeddings;
  const local = resolveRope({
    raw: { rope_parameters: sliding },
    headDim,
    maxPositions,
    defaultTheta,
    where,
  });
  return {
    ...decoder,
    maxPositions: Math.min(decoder.maxPositions, local.maxPositions),
    secondRopeLayers: slidingWindows.map((window) => window > 0),
    secondRopeInvFreq: local.invFreq,
    secondRopeAttentionFactor: local.attentionFactor,
  };
}
